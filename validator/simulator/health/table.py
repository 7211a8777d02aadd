"""The faults that the detectors are measured by, each on many seeds, and what came of them.

Faults begin in round 30 of 60. A delay counts the rounds that show the fault, the first included, up to the one whose
evidence and probes gave the verdict.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from statistics import fmean, median

from common.units import Hotkey, RoundId
from validator.health.evidence import LINKS, Kind
from validator.health.findings import Blame, Finding
from validator.health.ladder import Rung, actions
from validator.health.monitor import Monitor
from validator.simulator.health.fleet import Fleet, Rates
from validator.simulator.health.rules import fixed_timeout, z_score
from validator.simulator.scenario import FOREVER, Fault, Moment, Target
from validator.simulator.traces import Trace

ROUNDS = 60
BEGINS = 30
"""Round in which the faults of the table begin; a scenario's should too: delays are counted from it."""
SOON = 6
"""Rounds from the beginning of a fault in which whom it struck is compared with whom the verdicts name."""
PROVIDER, MINER = 3, 17


@dataclass(frozen=True)
class Row:
    """One fault of the table."""

    name: str
    faults: tuple[Fault, ...]
    kind: Kind | None = None
    """In which it shows; None: in none of a miner's."""
    blame: Blame | None = None
    named: str = ""
    """How the name of the right group begins; empty for nodes."""
    fleet: Fleet = field(default_factory=Fleet)
    most_rounds: int = ROUNDS - BEGINS
    """Rounds within which it has to be found to count."""


def _fault(kind: str, target: Target, size: float, begins: int = BEGINS) -> Fault:
    return Fault(kind, target, Moment(RoundId(begins), "open"), FOREVER, size)


_PROVIDER, _MINER = Target("provider", PROVIDER), Target("miner", MINER)
_DAY = _fault("diurnal", Target("miners"), 0.2, 0)
TABLE = (
    Row(
        "provider's uplinks at 50 %",
        (_fault("provider_link", _PROVIDER, 0.5),),
        Kind.UPLINK,
        Blame.GROUP,
        "provider p3",
    ),
    Row(
        "provider's uplinks at 80 %",
        (_fault("provider_link", _PROVIDER, 0.8),),
        Kind.UPLINK,
        Blame.GROUP,
        "provider p3",
    ),
    Row("node's uplink at 50 %", (_fault("slow_uplink", _MINER, 0.5),), Kind.UPLINK, Blame.NODE),
    Row("node's downlink at 50 %", (_fault("slow_downlink", _MINER, 0.5),), Kind.DOWNLINK, Blame.NODE),
    Row("node's compute at 70 %", (_fault("slow_compute", _MINER, 0.7),), Kind.COMPUTE, Blame.NODE),
    Row(
        "half a provider, one GPU, at 30 %",
        (_fault("gpu_set", _PROVIDER, 0.3),),
        Kind.UPLINK,
        Blame.GROUP,
        "gpu g0 and provider p3",
    ),
    Row(
        "the same without the GPU label",
        (_fault("gpu_set", _PROVIDER, 0.3),),
        Kind.UPLINK,
        Blame.NODE,
        fleet=Fleet(gpu_label=False),
    ),
    # 3 % a round leave less than half after 23 rounds.
    Row("node's uplink decays 3 % a round", (_fault("decay", _MINER, 0.03),), Kind.UPLINK, Blame.NODE, most_rounds=22),
    Row("validator's link at 30 %", (_fault("validator_link", Target("validator"), 0.3),), None, Blame.SELF),
    Row("storage gives 30 %", (_fault("storage_limit", Target("storage"), 0.3),), None, Blame.STORAGE),
    Row("nothing wrong, load of the day", (_DAY,)),
)
"""Nothing wrong comes last: with ``--trace``, machines leave and return in it as recorded."""


@dataclass(frozen=True)
class Played:
    """One seed of one row."""

    delay: int | None
    right: bool
    """The first verdict blames what is at fault."""
    precision: float | None
    recall: float | None
    watches: int
    """Of healthy machines, by onset."""
    quarantines: int
    machine_rounds: int
    """Of healthy machines."""
    suspended: int
    """Rounds from the fault on in which links blame nobody, for the right reason."""
    blamed: int
    """Healthy machines under a new verdict of a link."""
    rules: Mapping[str, tuple[int | None, int]]
    """By plain rule: the delay, and the healthy machines that it accuses."""


def play(row: Row, seed: int, trace: Trace | None = None) -> Played:
    """One fleet of one seed through all its rounds."""
    rates = Rates(row.fleet, row.faults, seed, trace)
    places, monitor = row.fleet.places(), Monitor()
    struck = frozenset[Hotkey]().union(*(rates.struck[f] for f in row.faults if f.kind != "diurnal" and row.kind))
    tally = _Tally(row, struck)
    for number in range(ROUNDS):
        evidence = rates.evidence(RoundId(number))
        judgement = monitor.look(evidence, places)
        confirmed, _ = monitor.probed(rates.probe(judgement.probes, RoundId(number)))
        quarantined = {h for h, action in actions(monitor.cases).items() if action.rung is Rung.QUARANTINE}
        seen = frozenset(hotkey for levels in evidence.samples.values() for hotkey in levels)
        tally.add(number, judgement.watches, (*judgement.verdicts, *confirmed), judgement.suspended, quarantined, seen)
        tally.add_rules(number, {"fixed_timeout": fixed_timeout(evidence), "z_score": z_score(evidence)})
    return tally.close()


class _Tally:
    def __init__(self, row: Row, struck: frozenset[Hotkey]) -> None:
        self._row, self._struck = row, struck
        self._delay: int | None = None
        self._right = False
        self._named: set[Hotkey] = set()
        self._watched: dict[tuple[Kind, str], int] = {}
        self._quarantined: set[Hotkey] = set()
        self._rules: dict[str, tuple[int | None, int]] = {}
        self._watches = self._quarantines = self._machine_rounds = self._suspended = self._blamed = 0

    def add(
        self,
        number: int,
        watches: Iterable[Finding],
        verdicts: Iterable[Finding],
        suspended: Iterable[Finding],
        quarantined: set[Hotkey],
        seen: frozenset[Hotkey],
    ) -> None:
        begun = number >= BEGINS
        self._machine_rounds += len(seen - self._struck if begun else seen)
        verdicts = list(verdicts)
        for finding in (*watches, *verdicts):
            last = self._watched.get((finding.kind, finding.name), -2)
            if last < number - 1:
                self._watches += len(self._healthy(finding, begun))
            self._watched[finding.kind, finding.name] = number
        new = quarantined - self._quarantined
        self._quarantines += len(new - self._struck if begun else new)
        self._quarantined = quarantined
        self._blamed += sum(len(self._healthy(f, begun)) for f in verdicts if f.kind in LINKS and begun)
        if begun and self._row.blame in (Blame.SELF, Blame.STORAGE):
            self._suspended += any(f.blame is self._row.blame and f.kind in LINKS for f in suspended)
        hits = [f for f in verdicts if begun and f.kind is self._row.kind and f.members & self._struck]
        if begun and number < BEGINS + SOON:
            self._named |= {h for f in verdicts if f.kind is self._row.kind for h in f.members}
        if hits and self._delay is None:
            self._delay = number - BEGINS + 1
            first = max(hits, key=lambda finding: len(finding.members & self._struck))
            self._right = first.blame is self._row.blame and first.name.startswith(self._row.named)

    def add_rules(self, number: int, accused: Mapping[str, Mapping[Kind, frozenset[Hotkey]]]) -> None:
        for rule, kinds in accused.items():
            delay, false = self._rules.get(rule, (None, 0))
            for kind, hotkeys in kinds.items():
                hit = hotkeys & self._struck if kind is self._row.kind and number >= BEGINS else frozenset()
                false += len(hotkeys - hit)
                if hit and delay is None:
                    delay = number - BEGINS + 1
            self._rules[rule] = delay, false

    def close(self) -> Played:
        both = self._named & self._struck
        return Played(
            delay=self._delay if self._delay is not None and self._delay <= self._row.most_rounds else None,
            right=self._right,
            precision=len(both) / len(self._named) if self._named and self._struck else None,
            recall=len(both) / len(self._struck) if self._struck else None,
            watches=self._watches,
            quarantines=self._quarantines,
            machine_rounds=self._machine_rounds,
            suspended=self._suspended,
            blamed=self._blamed,
            rules=self._rules,
        )

    def _healthy(self, finding: Finding, begun: bool) -> frozenset[Hotkey]:
        struck = self._struck if begun and finding.kind is self._row.kind else frozenset[Hotkey]()
        return finding.members - struck


@dataclass(frozen=True)
class Figures:
    """What many seeds of one row came to. Shares lie in [0, 1]; rates are per healthy machine and round."""

    fault: str
    seeds: int
    detected: float | None
    median_delay: float | None
    late_delay: float | None
    """95th percentile."""
    right: float | None
    """Of the detections: blamed on what is at fault."""
    precision: float | None
    recall: float | None
    watch_rate: float
    quarantine_rate: float
    blamed: int
    """Healthy machines under a verdict of a link since the fault began, all seeds."""
    suspended: float | None
    """Of the rounds since the fault began."""
    rules: Mapping[str, Mapping[str, float | None]]

    def to_table(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)


def measure(row: Row, seeds: range, trace: Trace | None = None, workers: int | None = None) -> Figures:
    """All seeds of a row, on all cores; the figures don't depend on how many."""
    with ProcessPoolExecutor(workers or os.cpu_count()) as pool:
        played = list(pool.map(partial(play, row, trace=trace), seeds, chunksize=max(1, len(seeds) // 32)))
    return figures(row, played)


def figures(row: Row, played: list[Played]) -> Figures:
    """Put seeds together."""
    delays = sorted(one.delay for one in played if one.delay is not None)
    machine_rounds = sum(one.machine_rounds for one in played)
    precision = [one.precision for one in played if one.precision is not None]
    recall = [one.recall for one in played if one.recall is not None]
    here = row.kind is not None
    others = row.blame in (Blame.SELF, Blame.STORAGE)
    return Figures(
        fault=row.name,
        seeds=len(played),
        detected=len(delays) / len(played) if here else None,
        median_delay=median(delays) if delays else None,
        late_delay=delays[math.ceil(0.95 * len(delays)) - 1] if delays else None,
        right=fmean(one.right for one in played if one.delay is not None) if delays else None,
        precision=fmean(precision) if precision else None,
        recall=fmean(recall) if recall else None,
        watch_rate=sum(one.watches for one in played) / machine_rounds,
        quarantine_rate=sum(one.quarantines for one in played) / machine_rounds,
        blamed=sum(one.blamed for one in played),
        suspended=fmean(one.suspended / (ROUNDS - BEGINS) for one in played) if others else None,
        rules={rule: _rule(rule, played, machine_rounds, here) for rule in ("fixed_timeout", "z_score")},
    )


def _rule(rule: str, played: list[Played], machine_rounds: int, here: bool) -> dict[str, float | None]:
    delays = [delay for one in played if (delay := one.rules[rule][0]) is not None]
    return {
        "detected": len(delays) / len(played) if here else None,
        "median_delay": median(delays) if delays else None,
        "watch_rate": sum(one.rules[rule][1] for one in played) / machine_rounds,
    }
