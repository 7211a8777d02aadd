"""A fleet whose rates are drawn from a seed, and what its faults do to them: the truth that the monitor doesn't see.

A machine's rate in a round is its own level times what strikes it, with log-normal noise; one transfer in fifty takes
three to ten times as long. Hardware comes in classes of 1, 2 and 4 times the speed, as machines of a market do.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from common.units import Hotkey, RoundId
from validator.health.evidence import LINKS, Evidence, Kind, Level, Sample, level
from validator.health.labels import Label, Place
from validator.simulator.scenario import Fault, Moment
from validator.simulator.traces import Trace

NOISE = 0.15
"""Standard deviation of the logarithm of a rate."""
TAIL = 0.02
"""Share of the transfers that take longer by ``TAIL_FROM`` to ``TAIL_TO`` times."""
TAIL_FROM, TAIL_TO = 3.0, 10.0
CLASSES = (1.0, 2.0, 4.0)
"""Speeds of the hardware mix; a GPU model stands for each."""
PROBES = 3
"""Transfers of one probe."""
OWN = 8
"""Transfers of the validator itself in a round."""
FELT = {
    "slow_compute": Kind.COMPUTE,
    "slow_uplink": Kind.UPLINK,
    "slow_downlink": Kind.DOWNLINK,
    "decay": Kind.UPLINK,
    "provider_link": Kind.UPLINK,
    "gpu_set": Kind.UPLINK,
}
"""In which kind of rate a miner's fault shows."""
ROUND_S = 600.0
DAY_ROUNDS = 24 * 3600 / ROUND_S


@dataclass(frozen=True)
class Machine:
    """One machine of the fleet."""

    hotkey: Hotkey
    provider: int
    region: int
    gpu: int


@dataclass(frozen=True)
class Fleet:
    """Who is where."""

    miners: int = 64
    providers: int = 8
    gpu_label: bool = True
    """Whether miners tell their GPU model."""

    def machines(self) -> tuple[Machine, ...]:
        """Providers hold equal parts, two to a region, each with two of the GPU models by turns."""
        each = max(1, self.miners // self.providers)
        return tuple(
            Machine(Hotkey(f"m{i:03d}"), p := i // each, p // 2, (p + i % 2) % len(CLASSES)) for i in range(self.miners)
        )

    def places(self) -> dict[Hotkey, Place]:
        """What a validator knows of them: addresses it sees, models that they tell; each has its own coldkey."""
        return {m.hotkey: self._place(m) for m in self.machines()}

    def _place(self, machine: Machine) -> Place:
        labels = [
            Label("provider", f"p{machine.provider}", False),
            Label("subnet", f"10.{machine.provider}.0.0/24", True),
            Label("region", f"r{machine.region}", False),
        ]
        if self.gpu_label:
            labels.append(Label("gpu", f"g{machine.gpu}", False))
        return Place(f"c{machine.hotkey}", tuple(labels))


@dataclass
class Rates:
    """The rates of a fleet over the rounds under some faults."""

    fleet: Fleet
    faults: tuple[Fault, ...]
    seed: int
    trace: Trace | None = None
    struck: dict[Fault, frozenset[Hotkey]] = field(default_factory=dict)
    """Whom each fault meets."""

    def __post_init__(self) -> None:
        # A string seeds alike in every process; a tuple's hash would not.
        self._dice = random.Random(f"{self.seed} rates")
        self._probe_dice = random.Random(f"{self.seed} probes")  # whoever probes changes nothing else
        self._machines = self.fleet.machines()
        self._base = {
            (kind, m.hotkey): math.log(self._dice.choice(CLASSES) if kind in LINKS else CLASSES[m.gpu])
            for kind in Kind
            for m in self._machines
        }
        self._phases = [self._dice.random() for _ in range(len(self._machines))]
        self.struck = {fault: self._whom(fault) for fault in self.faults}
        self._up = None if self.trace is None else self._rounds_up(self.trace)

    def evidence(self, round_id: RoundId) -> Evidence:
        """What a validator sees of a round."""
        dice = self._dice
        samples: dict[Kind, dict[Hotkey, tuple[Sample, ...]]] = {kind: {} for kind in Kind}
        for machine in self._machines:
            if not self.present(machine, round_id):
                continue
            for kind in Kind:
                samples[kind][machine.hotkey] = (self._sample(kind, machine, round_id, dice),)
        own = {kind: tuple(self._own(kind, round_id) for _ in range(OWN)) for kind in LINKS}
        return Evidence(round_id, samples, own)

    def probe(self, asked: Mapping[Kind, frozenset[Hotkey]], round_id: RoundId) -> dict[Kind, dict[Hotkey, Level]]:
        """Small transfers made for whoever is asked for and there."""
        results: dict[Kind, dict[Hotkey, Level]] = {}
        for machine in self._machines:
            for kind in LINKS:
                if machine.hotkey in asked.get(kind, ()) and self.present(machine, round_id):
                    shown = level([self._sample(kind, machine, round_id, self._probe_dice) for _ in range(PROBES)])
                    if shown is not None:
                        results.setdefault(kind, {})[machine.hotkey] = shown
        return results

    def present(self, machine: Machine, round_id: RoundId) -> bool:
        """Whether it takes part in a round."""
        if self._up is not None and not self._up[machine.hotkey][round_id % len(self._up[machine.hotkey])]:
            return False
        return not any(
            fault.kind == "provider_down" and machine.hotkey in self.struck[fault] and strikes(fault, round_id)
            for fault in self.faults
        )

    def _sample(self, kind: Kind, machine: Machine, round_id: RoundId, dice: random.Random) -> Sample:
        value = self._base[kind, machine.hotkey] + dice.gauss(0.0, NOISE)
        most = math.inf
        for fault in self.faults:
            if machine.hotkey not in self.struck[fault] or not strikes(fault, round_id):
                continue
            if fault.kind == "storage_limit" and kind in LINKS:
                # The storage gives each transfer so much at most: fast links lose more than slow ones.
                most = min(most, math.log(fault.size * CLASSES[-1]) + dice.gauss(0.0, NOISE))
            elif fault.kind == "diurnal" and kind in LINKS:
                turn = round_id / DAY_ROUNDS + self._phases[machine.region]
                value += fault.size * math.sin(2 * math.pi * turn)
            elif FELT.get(fault.kind) is kind:
                value += _slowdown(fault, round_id)
        if kind in LINKS and dice.random() < TAIL:
            value -= math.log(dice.uniform(TAIL_FROM, TAIL_TO))
        return Sample(math.exp(min(value, most)))

    def _own(self, kind: Kind, round_id: RoundId) -> Sample:
        value = self._dice.gauss(0.0, NOISE)
        for fault in self.faults:
            if fault.kind in ("validator_link", "storage_limit") and strikes(fault, round_id):
                value += math.log(fault.size)
        return Sample(math.exp(value))

    def _whom(self, fault: Fault) -> frozenset[Hotkey]:
        target, machines = fault.target, self._machines
        if target.kind == "miner":
            chosen = [m for m in machines if m.hotkey == machines[int(target.number) % len(machines)].hotkey]
        elif target.kind == "provider":
            chosen = [m for m in machines if m.provider == target.number]
            if fault.kind == "gpu_set" and chosen:
                chosen = [m for m in chosen if m.gpu == chosen[0].gpu]
        elif target.kind == "share":
            chosen = self._dice.sample(machines, max(1, round(target.number * len(machines))))
        else:
            chosen = list(machines)
        return frozenset(m.hotkey for m in chosen)

    def _rounds_up(self, trace: Trace) -> dict[Hotkey, list[bool]]:
        """Whether each machine is there for the whole of each round, over the length of the trace."""
        rounds = max(1, int(trace.length_s / ROUND_S))
        shift = self._dice.randrange(rounds)
        found = {}
        for index, machine in enumerate(self._machines):
            up, spans = [False] * rounds, trace.machine(index, len(self._machines))
            state, since = False, 0.0
            for at_s, is_up in spans.changes():
                if state:
                    for place in range(math.ceil(since / ROUND_S), min(rounds, int(at_s / ROUND_S))):
                        up[place] = True
                state, since = is_up, at_s
                if at_s >= rounds * ROUND_S:
                    break
            else:
                if state:
                    up[math.ceil(since / ROUND_S) :] = [True] * (rounds - math.ceil(since / ROUND_S))
            found[machine.hotkey] = up[shift:] + up[:shift]
        return found


def strikes(fault: Fault, round_id: RoundId) -> bool:
    """Whether a fault acts in a round."""
    return _age(fault, round_id) >= 0 and _age(fault, round_id) * ROUND_S < fault.duration_s


def _age(fault: Fault, round_id: RoundId) -> int:
    begins = fault.start.round if isinstance(fault.start, Moment) else int(fault.start / ROUND_S)
    return round_id - begins


def _slowdown(fault: Fault, round_id: RoundId) -> float:
    if fault.kind == "decay":
        return (_age(fault, round_id) + 1) * math.log(1.0 - fault.size)
    return math.log(fault.size)
