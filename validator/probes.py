"""Which links are probed, when, and what the probes have shown. Pure: time is an argument, memory is bounded.

A wish becomes some transfers, one at a time for each miner and a few at once overall, since they would disturb each
other: drafted, prepared by the caller, ordered in the answer to a heartbeat, judged when the answer comes. The clock
runs from the order to the answer's arrival, and is the caller's.

- A transfer without an answer in time, or with a wrong one, shows that the rate is at most what the time allowed. Where
  the miner has never answered any, or sent no heartbeat meanwhile, silence shows nothing.
- A link that was in use by the miner's own work shows nothing; it is asked again, a bounded number of times.
- Whatever happens here while the storage or this process was away shows nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from common import timeouts
from common.errors import Rejected
from common.probes import MAX_PROBE_BYTES, MIN_PROBE_BYTES
from common.units import Hotkey, Sha256
from common.wire import ProbeOrder
from validator.health.evidence import LINKS, MAX_SAMPLES, Kind, Level, Sample, level

TRANSFERS = 3
"""Of one wish: their median is the answer, so that one that was spoilt, or whose order was lost, decides nothing."""
MOST_AT_ONCE = 4
"""Transfers under way."""
MOST_PREPARED = 8
"""That wait for their order."""
MOST_BUSY = 8
"""Times in a row that a miner may say that its link is in use, before the wish is dropped."""
FIRST_BYTES = 1 << 20
"""Of a link of which nothing is known."""
AIM_S = 1.0
"""A transfer is to take about so long at the usual rate."""
SHRINK = 0.8
"""By so much the size falls at most from one transfer to the next."""
MOST_KNOWN = 4096
"""Miners that something is remembered of; those heard of longest ago are forgotten first."""
MOST_RESTS = 6
"""Doublings of the rest of a miner that does not seem to know probes."""
V = TypeVar("V")


class Outcome(Enum):
    """How a transfer ended."""

    RIGHT = "right"
    WRONG = "wrong"
    SHORT = "short"
    """As wrong: what was put is the beginning of what was ordered."""
    SILENT = "silent"
    BUSY = "busy"
    VOID = "void"
    """What happened is no fault of the miner's and tells nothing of its link."""


WRONGS = (Outcome.WRONG, Outcome.SHORT)


@dataclass(eq=False)
class Probe:
    """One transfer, from the draft to its end."""

    hotkey: Hotkey
    kind: Kind
    size_bytes: int
    since_s: float
    """When it was drafted, then when it was prepared, then when it was ordered."""
    order: ProbeOrder | None = None
    """Once it is prepared."""
    proof: Sha256 | None = None
    """The right answer, of the downlink."""
    ordered: bool = False
    heard: bool = False
    """A heartbeat came after the order."""
    took_s: float | None = None
    """From the order to the answer; it is being judged."""
    judged: bool = False


@dataclass
class _Wish:
    since_s: float
    not_before_s: float
    size_bytes: int
    """Of each of its transfers, which are to compare."""
    left: int = TRANSFERS
    heard_s: float | None = None
    busy: int = 0


class _Newest(OrderedDict[Hotkey, V]):
    """Forgets what was set longest ago."""

    def note(self, hotkey: Hotkey, value: V) -> None:
        self[hotkey] = value
        self.move_to_end(hotkey)
        if len(self) > MOST_KNOWN:
            self.popitem(last=False)


class Probes:
    """The probes of one leading process."""

    def __init__(self, usual: Callable[[Kind, Hotkey], float | None] = lambda kind, hotkey: None) -> None:
        """``usual`` is what is known elsewhere of a machine's rate, in bytes per second; it only chooses sizes."""
        self._usual = usual
        self._wishes: OrderedDict[tuple[Hotkey, Kind], _Wish] = OrderedDict()
        self._current: dict[Hotkey, Probe] = {}
        self._samples: dict[tuple[Kind, Hotkey], list[Sample]] = {}
        self._ended_s = _Newest[float]()
        self._answers = _Newest[bool]()
        """Who is known to know probes."""
        self._mute = _Newest[int]()
        """Who is not, and how often it let one pass."""
        self._rates = {kind: _Newest[float]() for kind in LINKS}

    def want(self, kinds: Mapping[Kind, frozenset[Hotkey]], now_s: float, *, confirm: bool = False) -> None:
        """Probe these, the first that were wanted first. ``confirm`` does so without the rest between two probes.

        What is wanted already stays so. Raises ValueError for a kind that is no link.
        """
        for kind, hotkeys in kinds.items():
            if kind not in LINKS:
                raise ValueError(f"{kind.value} can't be probed; what can is {', '.join(LINKS)}")
            for hotkey in sorted(hotkeys):
                at_s = now_s if confirm else max(now_s, self._rested_s(hotkey))
                at_s = max(at_s, self._unmuted_s(hotkey))
                wish = self._wishes.setdefault((hotkey, kind), _Wish(now_s, at_s, self._size(hotkey, kind)))
                wish.since_s, wish.not_before_s = now_s, min(wish.not_before_s, at_s)

    @property
    def wanted(self) -> int:
        """Wishes that are not met yet."""
        return len(self._wishes)

    def drafts(self, now_s: float) -> list[Probe]:
        """What is to be prepared now, each to be given back by ``prepared`` or ``failed``."""
        self._tidy(now_s)
        free = MOST_PREPARED - sum(not probe.ordered for probe in self._current.values())
        found: list[Probe] = []
        for (hotkey, kind), wish in self._wishes.items():
            heard = wish.heard_s is not None and now_s - wish.heard_s <= timeouts.PROBE_KEEP_S
            if len(found) < free and heard and wish.not_before_s <= now_s and hotkey not in self._current:
                probe = self._current[hotkey] = Probe(hotkey, kind, wish.size_bytes, now_s)
                found.append(probe)
        return found

    def prepared(self, probe: Probe, order: ProbeOrder, proof: Sha256 | None, now_s: float) -> None:
        """The transfer can be ordered; ``proof`` is what is right to answer, if that is known."""
        if self._current.get(probe.hotkey) is probe:
            probe.order, probe.proof, probe.since_s = order, proof, now_s

    def failed(self, probe: Probe, now_s: float) -> None:
        """It could not be prepared: later again."""
        self.end(probe, Outcome.VOID, now_s)

    def order(self, hotkey: Hotkey, now_s: float) -> ProbeOrder | None:
        """A heartbeat of this miner is being answered: what to order in the answer. Its time begins now."""
        for kind in LINKS:
            if (hotkey, kind) in self._wishes:
                self._wishes[hotkey, kind].heard_s = now_s
        probe = self._current.get(hotkey)
        if probe is None or probe.order is None:
            return None
        if probe.ordered:
            probe.heard = True
            return None
        under_way = sum(other.ordered for other in self._current.values())
        if under_way >= MOST_AT_ONCE or now_s - probe.since_s > timeouts.PROBE_KEEP_S:
            return None
        probe.ordered, probe.since_s = True, now_s
        return probe.order

    def answer(self, hotkey: Hotkey, nonce: str, now_s: float) -> Probe:
        """An answer that has arrived now, to be judged by the caller and given back by ``end``.

        Raises ``Rejected('not_asked')``: for every nonce that was not ordered of this very miner, was answered
        already, or is too old.
        """
        probe = self._current.get(hotkey)
        if probe is None or probe.order is None or not probe.ordered or probe.order.nonce != nonce or probe.judged:
            raise Rejected("not_asked", "no such probe of this hotkey is under way")
        took_s = now_s - probe.since_s
        if took_s > timeouts.PROBE_S:
            raise Rejected("not_asked", f"the answer comes after {took_s:.1f} s; {timeouts.PROBE_S:g} s were allowed")
        probe.took_s, probe.judged = took_s, True
        return probe

    def overdue(self, now_s: float) -> list[Probe]:
        """Those without an answer in time, each once, to be judged by the caller and given back by ``end``."""
        found = [
            probe
            for probe in self._current.values()
            if probe.ordered and not probe.judged and now_s - probe.since_s > timeouts.PROBE_S
        ]
        for probe in found:
            probe.judged = True
        return found

    def is_current(self, probe: Probe) -> bool:
        """Whether it was not dropped meanwhile."""
        return self._current.get(probe.hotkey) is probe

    def end(self, probe: Probe, outcome: Outcome, now_s: float) -> None:
        """This is how it ended; nothing happens when it was dropped meanwhile."""
        if not self.is_current(probe):
            return
        del self._current[probe.hotkey]
        self._ended_s.note(probe.hotkey, now_s)
        if outcome in (Outcome.RIGHT, *WRONGS, Outcome.BUSY):
            self._answers.note(probe.hotkey, True)
            self._mute.pop(probe.hotkey, None)
        if outcome is Outcome.RIGHT:
            assert probe.took_s is not None, "an answer came"
            self._show(probe, Sample(probe.size_bytes / max(probe.took_s, 1e-3)))
        elif outcome in WRONGS or (outcome is Outcome.SILENT and probe.heard and probe.hotkey in self._answers):
            self._show(probe, Sample(probe.size_bytes / timeouts.PROBE_S, censored=True))
        elif outcome is Outcome.SILENT and probe.heard:
            self._mute.note(probe.hotkey, self._mute.get(probe.hotkey, 0) + 1)
            for kind in LINKS:
                self._wishes.pop((probe.hotkey, kind), None)
        wish = self._wishes.get((probe.hotkey, probe.kind))
        if wish is not None:
            self._go_on(probe, wish, outcome, now_s)

    def void(self, now_s: float) -> None:
        """Time has passed that tells nothing of anybody: what is under way ends so, and is made again."""
        for probe in list(self._current.values()):
            self.end(probe, Outcome.VOID, now_s)

    def drop(self) -> None:
        """Nobody here is to probe any more."""
        self._wishes.clear()
        self._current.clear()
        self._samples.clear()

    def take(self) -> Mapping[Kind, Mapping[Hotkey, Level]]:
        """What came to light since the last call: of each machine the middle of its transfers."""
        found: dict[Kind, dict[Hotkey, Level]] = {}
        for (kind, hotkey), samples in self._samples.items():
            shown = level(samples)
            assert shown is not None, "rates are above 0"
            found.setdefault(kind, {})[hotkey] = shown
        self._samples = {}
        return found

    def _go_on(self, probe: Probe, wish: _Wish, outcome: Outcome, now_s: float) -> None:
        place = probe.hotkey, probe.kind
        if outcome in (Outcome.BUSY, Outcome.VOID):
            wish.busy = wish.busy + 1 if outcome is Outcome.BUSY else wish.busy
            wish.not_before_s = now_s + timeouts.PROBE_AGAIN_S
        else:
            wish.left, wish.busy = wish.left - 1, 0
        if wish.left == 0 or wish.busy >= MOST_BUSY:
            del self._wishes[place]

    def _show(self, probe: Probe, sample: Sample) -> None:
        samples = self._samples.setdefault((probe.kind, probe.hotkey), [])
        samples[:] = [*samples, sample][-MAX_SAMPLES:]
        rates = self._rates[probe.kind]
        # Down slowly: a machine that is well again must not look slow because its transfer is too small.
        rates.note(probe.hotkey, max(sample.rate, SHRINK * rates.get(probe.hotkey, 0.0)))

    def _size(self, hotkey: Hotkey, kind: Kind) -> int:
        """A power of two, so that the probes of a machine are mostly of one size and compare."""
        rate = self._rates[kind].get(hotkey) or self._usual(kind, hotkey)
        wanted = FIRST_BYTES if rate is None else int(min(rate * AIM_S, MAX_PROBE_BYTES))
        return max(MIN_PROBE_BYTES, 1 << (max(1, wanted).bit_length() - 1))

    def _rested_s(self, hotkey: Hotkey) -> float:
        return self._ended_s.get(hotkey, -timeouts.PROBE_REST_S) + timeouts.PROBE_REST_S

    def _unmuted_s(self, hotkey: Hotkey) -> float:
        """A miner that does not seem to know probes is asked ever less."""
        times = self._mute.get(hotkey, 0)
        if not times:
            return 0.0
        return self._ended_s.get(hotkey, 0.0) + timeouts.PROBE_REST_S * 2.0 ** min(times, MOST_RESTS)

    def _tidy(self, now_s: float) -> None:
        for probe in list(self._current.values()):
            if probe.order is not None and not probe.ordered and now_s - probe.since_s > timeouts.PROBE_KEEP_S:
                del self._current[probe.hotkey]
        for place, wish in list(self._wishes.items()):
            if now_s - wish.since_s > timeouts.PROBE_WANT_S and place[0] not in self._current:
                del self._wishes[place]
