"""The leader killed before its storage operations while miners drip and die, are late, or poison: one history."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses

from common import keys
from common.data.dataset import Dataset
from common.errors import RemoteError
from common.runlog.verify import verify_run
from common.wire import Phase
from tests.support.specs import tiny_spec
from tests.validator.test_guard import noise
from tests.validator.test_kills import Axe, Killed, history
from tests.validator.world import Made, Miner, World, play
from validator.process import Validator


class Dripper:
    """Delivers half of its work as a drip, however often it must try, and dies."""

    def __init__(self, miner: Miner) -> None:
        self.miner = miner
        miner.silent = True
        self.done = False

    async def act(self, validator: Validator) -> None:
        if self.done:
            return
        reply = self.miner.beat(validator)
        if reply.round is None:
            return
        self.miner.train(32)
        if self.miner.tokens >= 64:
            await self.miner.drip(validator, 2)
            self.done = True


class Late:
    """Announces its final of round 0 and brings it only when a plan has deferred it; then works like the others."""

    def __init__(self, miner: Miner) -> None:
        self.miner = miner
        miner.silent = True
        self.made: Made | None = None

    async def act(self, validator: Validator) -> None:
        state = self.miner.world.log()
        reply = self.miner.beat(validator)
        if reply.round is None or not self.miner.silent:
            return
        if self.made is None or state.head == 0:
            self.miner.train(32)
            if reply.round.instruction == "submit":
                self.miner.phase = Phase.UPLOADING
                self.made = self.made or self.miner.make(state)
                await self.miner.announce(validator, self.made)
            return
        again = await self.miner.announce(validator, self.made)
        if again.upload is not None:
            self.miner.put(again, self.made)
        await self.miner.complete(validator, self.made)
        self.miner.silent = False


async def until(world: World, actors: list[Dripper | Late], revision: int) -> None:
    validator = None
    for _ in range(600):
        try:
            validator = validator or world.validator(until=revision)
            await validator.driver.step()
            if world.log().head >= revision and validator.board.round is None:
                return
            for actor in actors:
                with contextlib.suppress(RemoteError):  # it tries again at its next turn
                    await actor.act(validator)
            await play(world, validator)
        except Killed:
            validator = None
        world.clock.advance(0.25)
    raise AssertionError("the run stands still")


def run_once(dataset: Dataset, known: World | None, at: int | None, kind: str, revision: int) -> tuple[World, Axe]:
    gates = dataclasses.replace(tiny_spec().gates, norm_factor=1e6, clip_factor=1e6, cosine_floor=-0.99)
    world = World(dataset, gates=gates)
    if known is not None:
        world.trained = known.trained

    async def go() -> Axe:
        await world.begin(4)
        actors: list[Dripper | Late] = []
        if kind == "drip":
            actors = [Dripper(world.miners[0])]
            world.miners[1].twist = noise
        else:
            actors = [Late(world.miners[0])]
        axe = Axe(world)
        axe.at = at
        await until(world, actors, revision)
        return axe

    axe = asyncio.run(go())
    world.store.before = None
    return world, axe


def check_all(dataset: Dataset, kind: str, revision: int, first: str) -> None:
    whole, axe = run_once(dataset, None, None, kind, revision)
    expected = history(whole)
    start = next(i for i, (_, key) in enumerate(axe.operations) if key.endswith(first))
    churner = whole.miners[0].signer.hotkey
    writes = [i for i, (name, key) in enumerate(axe.operations) if name == "put" and ("/log/" in key or churner in key)]
    for index in (i for i in writes if i >= start):
        world, _ = run_once(dataset, whole, index + 1, kind, revision)
        assert history(world) == expected, f"killed at {axe.operations[index]}"
        state = world.log()
        assert (state.rounds_committed, state.rounds_aborted) == (revision, 0)
    assert verify_run(world.store, "demo").merges == revision


def test_drips_of_the_dead_and_a_redone_plan_survive_the_leader(dataset: Dataset) -> None:
    check_all(dataset, "drip", 1, keys.log_key("demo", 1))


def test_late_work_survives_the_leader(dataset: Dataset) -> None:
    check_all(dataset, "late", 2, keys.log_key("demo", 3))
