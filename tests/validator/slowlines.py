"""Miners of one process whose uploads take as long as a test says, on the manual clock; probes say the same."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from common.codec.params import F32
from common.data.dataset import Dataset
from common.errors import Rejected
from common.units import Hotkey, RoundId
from common.wire import Phase, SubmissionReply
from tests.validator.butterflies import UNDRAWN, hand_in, work
from tests.validator.world import STEPS, WORK, Made, Miner, World
from validator.health.evidence import Kind, Level
from validator.process import Validator

MINERS, BEHIND = 10, 3
"""The last ``BEHIND`` share an address."""
STEP_S = 0.25
USUAL_S = (1.0, 1.25, 1.5)
SMALL = 0.05
"""Of a real delta: many rounds of it do no harm."""


def fleet(dataset: Dataset, **changes: object) -> World:
    """Ten miners, three of them in one network."""
    world = World(dataset, **{"reduce": UNDRAWN, **changes})
    limits = dataclasses.replace(world.spec.round, target_tokens=MINERS * WORK, quorum_tokens=WORK)
    return World(dataset, **{"reduce": UNDRAWN, **changes, "round": limits})


@dataclass
class Lines:
    """What each miner's line carries."""

    world: World
    slow: dict[int, float] = field(default_factory=dict)
    """By miner, how many times as long its uploads take."""
    size_bytes: int = 0
    """Of each delta of this run."""
    dealt: dict[RoundId, set[Hotkey]] = field(default_factory=dict)
    """Who had duties, by round."""
    _trained: dict[Hotkey, F32] = field(default_factory=dict)
    _under_way: dict[int, tuple[float, Made, SubmissionReply]] = field(default_factory=dict)

    def begin(self) -> None:
        """Give everybody its address."""
        for number, miner in enumerate(self.world.miners):
            behind = number >= MINERS - BEHIND
            miner.host = f"203.0.113.{number}" if behind else f"198.51.{number}.7"

    @property
    def behind(self) -> frozenset[Hotkey]:
        return frozenset(miner.signer.hotkey for miner in self.world.miners[-BEHIND:])

    def throttle(self, times: float) -> None:
        """The shared address's line."""
        self.slow = dict.fromkeys(range(MINERS - BEHIND, MINERS), times)

    def takes_s(self, number: int) -> float:
        """One upload."""
        return math.ceil(USUAL_S[number % len(USUAL_S)] * self.slow.get(number, 1.0) / STEP_S) * STEP_S

    async def turn(self, validator: Validator) -> None:
        """Everybody trains, sends and reduces."""
        for number, miner in enumerate(self.world.miners):
            await self._one(number, miner, validator)

    async def _one(self, number: int, miner: Miner, validator: Validator) -> None:
        world, now_s = self.world, self.world.clock.monotonic_s()
        reply = miner.beat(validator)
        if number in self._under_way:
            due_s, made, allowed = self._under_way[number]
            if now_s < due_s:
                return
            del self._under_way[number]
            if reply.round is not None and reply.round.round == made.manifest.round and not reply.delivered:
                await self.send(number, miner, validator, allowed, made)
        elif reply.round is not None and reply.round.instruction == "train":
            miner.phase = Phase.TRAINING
            miner.train(32)
        elif reply.round is not None and reply.round.instruction == "submit" and not reply.delivered:
            miner.phase = Phase.UPLOADING
            made = self._make(miner, validator)
            self._under_way[number] = now_s + self.takes_s(number), made, await miner.announce(validator, made)
        else:
            miner.phase = Phase.WAITING
        opened = validator.board.journal.state.open_round
        if reply.reduce is not None and opened is not None:
            self.dealt.setdefault(opened.round, set()).add(miner.signer.hotkey)
            await hand_in(validator, miner, work(world, miner, reply.reduce, opened=opened))

    async def send(self, number: int, miner: Miner, validator: Validator, allowed: SubmissionReply, made: Made) -> None:
        """Put it, and say so."""
        miner.put(allowed, made)
        with contextlib.suppress(Rejected):  # the round was frozen meanwhile
            await miner.complete(validator, made)

    def _make(self, miner: Miner, validator: Validator) -> Made:
        """What it trained in its first round, again and again: training is not what is looked at."""
        state, hotkey = validator.board.journal.state, miner.signer.hotkey
        assert state.open_round is not None
        if hotkey not in self._trained:
            self._trained[hotkey] = SMALL * miner._trained(state, STEPS)
        base = state.revisions[state.open_round.base_revision].sha256
        self.world.trained[base, state.open_round.round, str(hotkey), STEPS] = self._trained[hotkey]
        made = miner.make(state)
        self.size_bytes = made.manifest.delta.size_bytes
        return made


@dataclass
class Prober:
    """Probes of uploads: ``overhead`` times as long as the lines take; answered when the next look asks."""

    lines: Lines
    overhead: float = 1.0
    asked: list[Mapping[Kind, frozenset[Hotkey]]] = field(default_factory=list)
    """For a reason."""
    _open: dict[Kind, set[Hotkey]] = field(default_factory=dict)

    def want(self, kinds: Mapping[Kind, frozenset[Hotkey]], now_s: float, *, confirm: bool = False) -> None:
        if confirm:
            self.asked.append(kinds)
        for kind, hotkeys in kinds.items():
            self._open.setdefault(kind, set()).update(hotkeys)

    def take(self, now_s: float) -> Mapping[Kind, Mapping[Hotkey, Level]]:
        asked, self._open = self._open, {}
        numbers = {miner.signer.hotkey: number for number, miner in enumerate(self.lines.world.miners)}
        size = self.lines.size_bytes
        return {
            kind: {
                hotkey: Level(math.log(size / self.overhead / self.lines.takes_s(numbers[hotkey])), False)
                for hotkey in hotkeys
            }
            for kind, hotkeys in asked.items()
            if kind is Kind.UPLINK
        }
