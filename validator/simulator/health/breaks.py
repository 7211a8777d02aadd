"""Connections and transfers that break, and claims that are off: the same fleets, the real sums, seed by seed.

In a round of ten minutes a machine has ten stretches of its connection and brings or is probed for four transfers; one
in fifty of each fails where nothing is wrong. Claims scatter by a fifth and a steady bias of up to a third.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from statistics import median

from common.units import Hotkey, RoundId
from validator.health.breaks import Attempts, Break, Breaks, gathered
from validator.health.claims import CLAIMS, Claims, Said
from validator.health.labels import groups
from validator.simulator.health.fleet import ROUND_S, Fleet, Rates, strikes
from validator.simulator.scenario import Fault, Moment, Target
from validator.simulator.traces import Trace

ROUNDS, BEGINS = 60, 30
CHANCE = 0.02
"""Share of a healthy machine's attempts that fails."""
MADE = {Break.FLAP: 10, Break.TRUNCATE: 4}
"""Attempts of one machine in a round."""
SCATTER, BIAS = 0.2, 0.3
"""Standard deviation of the logarithm of a claim over what is shown, and the most by which a machine's own is off."""
SHOWN = {"flap": Break.FLAP.value, "truncate": Break.TRUNCATE.value, "liar": CLAIMS}
"""In what a fault shows."""
Found = Mapping[str, frozenset[Hotkey]]
"""Who is at fault now, by what."""


@dataclass(frozen=True)
class BreakRow:
    """One fault of the table; without a kind nobody is to be blamed."""

    name: str
    faults: tuple[Fault, ...]
    kind: str | None = None
    named: str = ""
    """How the name of the group begins that is to be told as one thing; empty for machines."""
    fleet: Fleet = field(default_factory=Fleet)


@dataclass(frozen=True)
class Broke:
    """One seed of one row."""

    delays: tuple[int | None, ...]
    """Of each machine that the fault struck, in rounds, the first that shows it included; None: never found."""
    released: tuple[int | None, ...]
    """Rounds after the end of a fault until each of them is free again."""
    blamed: int
    """Healthy machines that were accused, each time anew."""
    machine_rounds: int
    """Of healthy machines."""
    together: int | None
    """Rounds until they are told as one group, under its name."""


@dataclass(frozen=True)
class BreakFigures:
    """What many seeds of one row came to."""

    fault: str
    seeds: int
    found: float | None
    """Share of the struck machines; None where nobody is to be blamed."""
    median_delay: float | None
    late_delay: float | None
    """95th percentile."""
    median_release: float | None
    together: float | None
    """Rounds until a group is told as one thing, the median; infinite where in half of the seeds it is not."""
    blamed: int
    blame_rate: float
    """Of healthy machines, for each of their rounds."""


class Chances:
    """What a validator sees of a fleet in a round: attempts and claims."""

    def __init__(self, row: BreakRow, seed: int, trace: Trace | None = None) -> None:
        self._rates = Rates(row.fleet, row.faults, seed, trace)
        self._machines = row.fleet.machines()
        self._faults = row.faults
        self._dice = random.Random(f"{seed} breaks")
        self._bias = {m.hotkey: self._dice.uniform(-BIAS, BIAS) for m in self._machines}
        self._was_there: dict[Hotkey, bool] = {}

    def struck(self, kind: str | None) -> frozenset[Hotkey]:
        """Whom the faults of this kind meet."""
        found = (self._rates.struck[fault] for fault in self._faults if SHOWN.get(fault.kind) == kind and kind)
        return frozenset[Hotkey]().union(*found)

    def attempts(self, round_id: RoundId) -> dict[Break, dict[Hotkey, Attempts]]:
        """A machine that is gone makes none; one that returns with its process has broken its connection once."""
        found: dict[Break, dict[Hotkey, Attempts]] = {kind: {} for kind in MADE}
        for machine in self._machines:
            hotkey, there = machine.hotkey, self._rates.present(machine, round_id)
            back = there and not self._was_there.get(hotkey, True)
            self._was_there[hotkey] = there
            for kind, made in MADE.items():
                share = self._share(kind, hotkey, round_id)
                failed = sum(self._dice.random() < share for _ in range(made))
                if there:
                    failed = min(made, failed + (back and kind is Break.FLAP))
                    found[kind][hotkey] = Attempts(made, failed)
        return found

    def said(self, round_id: RoundId) -> dict[Hotkey, Said]:
        """What everybody claims, where each shows 100 tokens per second."""
        found = {}
        for machine in self._machines:
            lie = math.prod(f.size for f in self._acting("liar", machine.hotkey, round_id))
            speed, counted = (100.0 * math.exp(self._dice.gauss(0.0, SCATTER)) for _ in range(2))
            if self._rates.present(machine, round_id):
                found[machine.hotkey] = Said(speed * lie * math.exp(self._bias[machine.hotkey]), counted, 100.0)
        return found

    def _share(self, kind: Break, hotkey: Hotkey, round_id: RoundId) -> float:
        sizes = [fault.size for fault in self._acting(kind.value, hotkey, round_id)]
        return max((CHANCE, *sizes))

    def _acting(self, kind: str, hotkey: Hotkey, round_id: RoundId) -> list[Fault]:
        return [
            fault
            for fault in self._faults
            if fault.kind == kind and hotkey in self._rates.struck[fault] and strikes(fault, round_id)
        ]


def play(row: BreakRow, seed: int, trace: Trace | None = None) -> Broke:
    """One fleet of one seed through all its rounds."""
    chances, breaks, claims = Chances(row, seed, trace), Breaks(), Claims()
    struck, ends = chances.struck(row.kind), _ends(row)
    found: dict[Hotkey, int] = {}
    free: dict[Hotkey, int] = {}
    where, together = groups(row.fleet.places()), None
    blamed, machine_rounds, before = 0, 0, frozenset[tuple[str, Hotkey]]()
    for number in range(ROUNDS):
        said = chances.said(RoundId(number))
        broken = breaks.look(RoundId(number), chances.attempts(RoundId(number)))
        now = {(one.kind.value, one.member) for one in broken}
        now |= {(CLAIMS, one.member) for one in claims.look(RoundId(number), said)}
        guilty = {(row.kind, hotkey) for hotkey in struck} if number >= BEGINS else set()
        blamed += len(now - before - guilty)
        machine_rounds += len(said.keys() - (struck if number >= BEGINS else frozenset()))
        before = frozenset(now)
        if row.named and together is None and any(name.startswith(row.named) for _, _, name in gathered(broken, where)):
            together = number - BEGINS + 1
        for _, hotkey in now & guilty:
            found.setdefault(hotkey, number - BEGINS + 1)
        if number >= ends:
            for hotkey in found.keys() - {hotkey for _, hotkey in now & guilty}:
                free.setdefault(hotkey, number - ends + 1)
    order = sorted(struck)
    delays = tuple(found.get(hotkey) for hotkey in order)
    released = tuple(free.get(hotkey) for hotkey in order if hotkey in found) if ends < ROUNDS else ()
    return Broke(delays, released, blamed, machine_rounds, together)


def measure(row: BreakRow, seeds: range, trace: Trace | None = None, workers: int | None = None) -> BreakFigures:
    """All seeds of a row, on all cores; the figures don't depend on how many."""
    with ProcessPoolExecutor(workers or os.cpu_count()) as pool:
        played = list(pool.map(partial(play, row, trace=trace), seeds, chunksize=max(1, len(seeds) // 32)))
    return figures(row, played)


def figures(row: BreakRow, played: list[Broke]) -> BreakFigures:
    """Put seeds together."""
    every = [delay for one in played for delay in one.delays]
    delays = sorted(delay for delay in every if delay is not None)
    released = [rounds for one in played for rounds in one.released if rounds is not None]
    blamed = sum(one.blamed for one in played)
    together = [math.inf if one.together is None else one.together for one in played] if row.named else []
    return BreakFigures(
        fault=row.name,
        seeds=len(played),
        found=len(delays) / len(every) if every else None,
        median_delay=median(delays) if delays else None,
        late_delay=delays[math.ceil(0.95 * len(delays)) - 1] if delays else None,
        median_release=median(released) if released else None,
        together=median(together) if together else None,
        blamed=blamed,
        blame_rate=blamed / max(1, sum(one.machine_rounds for one in played)),
    )


def _ends(row: BreakRow) -> int:
    """The first round in which no fault that is to be found acts any more."""
    lasts = [fault.duration_s for fault in row.faults if SHOWN.get(fault.kind) == row.kind]
    return ROUNDS if not lasts or math.isinf(max(lasts)) else BEGINS + math.ceil(max(lasts) / ROUND_S)


def _fault(kind: str, target: Target, size: float, rounds: float = math.inf) -> Fault:
    return Fault(kind, target, Moment(RoundId(BEGINS), "open"), rounds * ROUND_S, size)


_MINER, _PROVIDER, _ALL = Target("miner", 17), Target("provider", 3), Target("miners")
BREAKS = (
    BreakRow("node's connection breaks in half of its minutes", (_fault("flap", _MINER, 0.5),), "flap"),
    BreakRow("the same, for ten rounds", (_fault("flap", _MINER, 0.5, 10),), "flap"),
    BreakRow(
        "the connections of a provider, in every other minute", (_fault("flap", _PROVIDER, 0.5),), "flap", "provider p3"
    ),
    BreakRow("node cuts half of its transfers short", (_fault("truncate", _MINER, 0.5),), "truncate"),
    BreakRow("node cuts a quarter of them short", (_fault("truncate", _MINER, 0.25),), "truncate"),
    BreakRow("node claims ten times what it shows", (_fault("liar", _MINER, 10.0),), CLAIMS),
    BreakRow("node claims three times what it shows", (_fault("liar", _MINER, 3.0),), CLAIMS),
    BreakRow("half of all transfers are cut short", (_fault("truncate", _ALL, 0.5),)),
    BreakRow("provider gone for three rounds", (_fault("provider_down", _PROVIDER, 1.0, 3),)),
    BreakRow("nothing breaks", ()),
)
"""Where all suffer, or a provider goes and returns, nobody is to be blamed."""
