"""Verdicts over the rounds: alarms are probed before they count, and whoever is well again by probe is let go.

A round is two steps, so that the effect between them, making probes, lies with the caller: ``look`` takes the evidence
and says what should be probed; ``probed`` takes what the probes showed. Bounded by the machines that are followed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from common.units import Hotkey, RoundId
from validator.health.detectors import Alarm, Detector, Shared
from validator.health.evidence import LINKS, Evidence, Kind, Level, level
from validator.health.findings import Blame, Finding, Stage
from validator.health.labels import Place, groups, sites
from validator.health.past import Past, middle

COMPUTE_VERDICT = 6.0
"""Score at which slow compute is a verdict: nothing can be probed there but the next rounds of work."""
GROUP_PROBES = 8
"""Members of a group that are probed for it."""
CONFIRMS = 0.5
"""Share of the fall, in logarithms, that a probe has to show; at most so many scatters: see below."""
CONFIRMS_AT_MOST = 1.5
WELL = 0.5
"""Share of the fall that a machine under a verdict may still show and count as well again."""
CLEAN_ROUNDS = 2
"""Rounds in a row that show it well again before it is let go."""
LONGEST_REST = 8
"""Rounds between two probes of a machine under a verdict; 1, 2, 4 at first."""
SETTLED_ROUNDS = 48
"""Rounds after which a lasting lower rate is the machine's usual one: it is slower now, and no longer at fault."""


@dataclass(eq=False)
class Case:
    """A verdict and how it goes on, for one machine and kind."""

    finding: Finding
    at: RoundId
    next_probe: RoundId
    clean: int = 0
    """Probes, or rounds of work, in a row that show it well again."""
    dirty: int = 0
    """Those that have shown since the verdict that it is not."""
    rest: int = 1


@dataclass(frozen=True)
class Judgement:
    """What one round came to."""

    watches: tuple[Finding, ...] = ()
    """Alarms of this round, of links: to be probed."""
    verdicts: tuple[Finding, ...] = ()
    """New in this round."""
    released: tuple[Finding, ...] = ()
    """Cases closed in this round."""
    suspended: tuple[Finding, ...] = ()
    """Kinds in which nobody is blamed in this round, and what is suspected in their place."""
    probes: Mapping[Kind, frozenset[Hotkey]] = field(default_factory=dict)
    """Whom to probe in what, before ``probed`` is called."""


class Monitor:
    """The health of all machines of a run."""

    def __init__(self) -> None:
        self._detectors = {kind: Detector(kind) for kind in Kind}
        self._cases: dict[tuple[Kind, Hotkey], Case] = {}
        self._own: dict[Kind, Past] = {kind: Past() for kind in LINKS}
        self._alarms: dict[Finding, Alarm] = {}
        self._round = RoundId(0)

    @property
    def cases(self) -> Mapping[tuple[Kind, Hotkey], Case]:
        """Every machine under a verdict, by kind."""
        return self._cases

    def past(self, kind: Kind, hotkey: Hotkey) -> Past | None:
        """What a machine usually does; None when nothing was seen of it."""
        return self._detectors[kind].pasts.get(hotkey)

    def against(self, kind: Kind, hotkey: Hotkey, shown: Level) -> float | None:
        """How far from what the newest round lets expect, in logarithms; None where nothing does."""
        found = self._detectors[kind].departure(hotkey, shown)
        return None if found is None else found[0]

    def followed(self) -> frozenset[Hotkey]:
        """Everybody of whom something was seen."""
        return frozenset(hotkey for detector in self._detectors.values() for hotkey in detector.pasts)

    def forget(self, keep: Callable[[Hotkey], bool]) -> None:
        """Drop machines that are gone for good, and what is held against them."""
        for detector in self._detectors.values():
            detector.forget(keep)
        self._cases = {(kind, hotkey): case for (kind, hotkey), case in self._cases.items() if keep(hotkey)}

    def restore(self, cases: Mapping[tuple[Kind, Hotkey], Case], pasts: Mapping[tuple[Kind, Hotkey], Past]) -> None:
        """Go on from what an earlier process or leader left: its cases in place of ours, and the pasts of machines
        that have none here. Sums that were rising begin again, and a case without a past is dropped: nothing could
        show that the machine is well again."""
        for (kind, hotkey), past in pasts.items():
            known = self.past(kind, hotkey)
            if known is None or known.level is None:
                self._detectors[kind].pasts[hotkey] = past
        self._alarms = {}
        self._cases = {
            (kind, hotkey): case
            for (kind, hotkey), case in cases.items()
            if (held := self.past(kind, hotkey)) is not None and held.level is not None
        }

    def look(self, evidence: Evidence, places: Mapping[Hotkey, Place]) -> Judgement:
        """Take a round's evidence; the probes that it asks for are answered by ``probed`` before the next look.

        On the wire that is a round later: what is not answered by then is asked again while the alarm lasts."""
        self._round, self._alarms = evidence.round, {}
        where = groups(places), sites(places)
        own_down = self._look_at_own(evidence)
        watches, verdicts, released, suspended = [], [], [], []
        probes: dict[Kind, set[Hotkey]] = {kind: set() for kind in LINKS}
        for kind, detector in self._detectors.items():
            levels = self._levels(evidence, kind)
            accused = frozenset(hotkey for case_kind, hotkey in self._cases if case_kind is kind)
            alarms, shared = detector.step(levels, *where, accused)
            if shared is not None or own_down is not None:
                suspended.append(self._suspend(kind, shared, own_down))
                continue
            released += self._settle(kind, levels)
            for alarm in alarms:
                finding = self._finding(kind, alarm)
                if kind is Kind.COMPUTE:
                    if alarm.group is None and detector.pasts[next(iter(alarm.members))].score < COMPUTE_VERDICT:
                        watches.append(finding)
                    else:
                        verdicts.append(self._convict(finding))
                else:
                    watches.append(finding)
                    self._alarms[finding] = alarm
                    probes[kind] |= set(sorted(alarm.members)[:GROUP_PROBES] if alarm.group else alarm.members)
            if kind in LINKS:
                probes[kind] |= {
                    hotkey
                    for (case_kind, hotkey), case in self._cases.items()
                    if case_kind is kind and case.next_probe <= self._round and hotkey in places
                }
        asked = {kind: frozenset(hotkeys) for kind, hotkeys in probes.items() if hotkeys}
        return Judgement(tuple(watches), tuple(verdicts), tuple(released), tuple(suspended), asked)

    def probed(self, results: Mapping[Kind, Mapping[Hotkey, Level]]) -> tuple[list[Finding], list[Finding]]:
        """What the probes showed: new verdicts, and machines that are well again."""
        verdicts = []
        for finding, alarm in self._alarms.items():
            detector, shown = self._detectors[finding.kind], results.get(finding.kind, {})
            seen = [found for h in sorted(alarm.members) if h in shown and (found := detector.departure(h, shown[h]))]
            if not seen:
                continue  # nothing came back: it is asked again while the alarm lasts
            needed = max(CONFIRMS * finding.departure, -CONFIRMS_AT_MOST * middle(spread for _, spread in seen))
            if middle(departure for departure, _ in seen) <= needed:
                verdicts.append(self._convict(replace(finding, probed=True)))
            else:
                detector.calm(alarm)
        self._alarms = {}
        released = []
        for kind in LINKS:
            for hotkey, shown_level in results.get(kind, {}).items():
                case = self._cases.get((kind, hotkey))
                if case is None or case.at == self._round:
                    continue
                if self._is_well(case, kind, hotkey, shown_level):
                    released.append(case.finding)
                else:
                    case.rest = min(LONGEST_REST, 2 * case.rest)
                case.next_probe = RoundId(self._round + (1 if case.clean else case.rest))
        return verdicts, released

    def _levels(self, evidence: Evidence, kind: Kind) -> dict[Hotkey, Level]:
        found = {hotkey: level(samples) for hotkey, samples in evidence.samples.get(kind, {}).items()}
        return {hotkey: value for hotkey, value in found.items() if value is not None}

    def _look_at_own(self, evidence: Evidence) -> Finding | None:
        """Whether the validator's own transfers have fallen: then it doesn't trust what it sees."""
        fallen = None
        for kind, past in self._own.items():
            seen = level(evidence.own.get(kind, ()))
            if seen is None:
                continue
            if past.level is not None and seen.log_rate - past.level < -3 * past.spread:
                away = seen.log_rate - past.level
                fallen = fallen or self._other(kind, Blame.SELF, "this validator's own link", away, -away / past.spread)
            else:
                past.learn(seen.log_rate)
        return fallen

    def _suspend(self, kind: Kind, shared: Shared | None, own: Finding | None) -> Finding:
        if shared is None:
            assert own is not None
            return own
        name = "what all transfers share: the storage" if kind in LINKS else "what all machines share"
        if own is not None and kind in LINKS:
            name = "the storage"
        return self._other(kind, Blame.STORAGE, name, min(shared.departure, 0.0), 0.0)

    def _other(self, kind: Kind, blame: Blame, name: str, away: float, sigmas: float) -> Finding:
        return Finding(kind, blame, frozenset(), name, True, self._round, away, sigmas, Stage.VERDICT)

    def _finding(self, kind: Kind, alarm: Alarm) -> Finding:
        group = alarm.group
        return Finding(
            kind=kind,
            blame=Blame.NODE if group is None else Blame.GROUP,
            members=alarm.members,
            name=next(iter(alarm.members)) if group is None else str(group),
            observed=group is None or group.observed,
            since=RoundId(max(0, self._round - alarm.rounds + 1)),
            departure=alarm.departure,
            sigmas=alarm.sigmas,
            stage=Stage.WATCH,
        )

    def _convict(self, finding: Finding) -> Finding:
        verdict = replace(finding, stage=Stage.VERDICT)
        for hotkey in sorted(finding.members):
            if (finding.kind, hotkey) not in self._cases:
                self._cases[finding.kind, hotkey] = Case(verdict, self._round, RoundId(self._round + 1))
        return verdict

    def _is_well(self, case: Case, kind: Kind, hotkey: Hotkey, shown: Level) -> bool:
        seen = self._detectors[kind].departure(hotkey, shown)
        if seen is None or seen[0] < WELL * case.finding.departure:
            case.clean, case.dirty = 0, case.dirty + (seen is not None)
            return False
        case.clean += 1
        if case.clean < CLEAN_ROUNDS:
            return False
        self._detectors[kind].pasts[hotkey].calm()
        del self._cases[kind, hotkey]
        return True

    def _settle(self, kind: Kind, levels: Mapping[Hotkey, Level]) -> list[Finding]:
        """Close cases by the rounds themselves: compute that is back, and rates that have long become usual."""
        closed = []
        for (case_kind, hotkey), case in list(self._cases.items()):
            if case_kind is not kind:
                continue
            if kind is Kind.COMPUTE and hotkey in levels and self._is_well(case, kind, hotkey, levels[hotkey]):
                closed.append(case.finding)
            elif self._round - case.at >= SETTLED_ROUNDS:
                self._detectors[kind].pasts[hotkey] = Past()
                del self._cases[kind, hotkey]
                closed.append(case.finding)
        return closed
