"""What a leader sees of its miners' transfers and work between two looks at their health: the evidence of a round.

Invariants: every time is the receiver's, and nothing that a miner says of its own rates is taken down but as a claim;
an upload, a read, a silence or a stretch of work during which the storage was away or this process slept is not
counted. Bounded: the newest samples of each machine, one pending upload of each line, and the names of the deltas that
a round takes. The event loop owns it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from common.units import Hotkey, RoundId
from common.wire import Heartbeat, Phase
from validator.health.breaks import Attempts, Break, Seen
from validator.health.evidence import MAX_SAMPLES, Evidence, Kind, Level, Sample
from validator.hearsay import Hearsay
from validator.presence import Presence
from validator.submissions import Line, Name

LEAST_S = 0.05
"""Shorter times are taken for this long: below, the network's round trips and our own looks are all there is."""
Samples = dict[Hotkey, deque[Sample]]


@dataclass(frozen=True, slots=True)
class _Pending:
    """An upload that was allowed and has not arrived."""

    name: Name
    size_bytes: int
    since_s: float
    whole: bool
    """Whether the answer named all that was missing of it: then nobody asks again for what went well."""
    word: str


@dataclass
class Vitals:
    """Of one process, while it leads."""

    _samples: dict[Kind, Samples] = field(default_factory=lambda: {kind: {} for kind in Kind})
    _own: deque[Sample] = field(default_factory=lambda: deque(maxlen=MAX_SAMPLES))
    _pending: dict[Line, _Pending] = field(default_factory=dict)
    presence: Presence = field(default_factory=Presence)
    hearsay: Hearsay = field(default_factory=Hearsay)
    busy: dict[Hotkey, int] = field(default_factory=dict)
    """Who has put off how many probes in a row."""
    _attempts: dict[Break, dict[Hotkey, Attempts]] = field(default_factory=dict)
    _newest: RoundId | None = None
    _came: set[Name] = field(default_factory=set)
    _cut: set[Name] = field(default_factory=set)
    """Uploads since the last look that arrived, and that were cut short before, or did not arrive whole at all."""

    def allowed(self, name: Name, size_bytes: int, now_s: float, whole: bool = True, word: str = "") -> None:
        """An upload may begin; ``whole``: all that is missing of it, ``word``: the manifest by which it was asked for.
        Asked for again by the same one it was cut short, and goes on. Another upload of its line takes its place,
        uncounted: when its sender gave the older one up, nobody here knows."""
        if name[0] != self._newest:
            self._count_uploads()  # of a round that was aborted
            self._newest = name[0]
        line = name[1], name[2]
        before = self._pending.get(line)
        if before is None or before.name != name:
            self._pending[line] = _Pending(name, size_bytes, now_s, whole, word)
            return
        if before.whole and before.word == word:
            self._cut.add(name)
        self._pending[line] = replace(before, whole=whole, word=word)

    def arrived(self, name: Name, now_s: float) -> None:
        """Its object is there."""
        line = name[1], name[2]
        pending = self._pending.get(line)
        if pending is not None and pending.name == name:
            del self._pending[line]
            self._note(Kind.UPLINK, name[2], _rate(pending.size_bytes, now_s - pending.since_s))
            self._came.add(name)

    def cut_short(self, name: Name) -> None:
        """Not all of it is there, though its sender says so, or what lies in its place is something else."""
        self._cut.add(name)

    def heard(self, hotkey: Hotkey, beat: Heartbeat, now_s: float) -> None:
        """A heartbeat came."""
        self.presence.heard(hotkey, beat.session, beat.phase is Phase.DRAINING, now_s)

    def put_off(self, hotkey: Hotkey, busy: bool) -> None:
        """It has answered a probe, or has put it off as its link was in use."""
        if busy:
            self.busy[hotkey] = self.busy.get(hotkey, 0) + 1
        else:
            self.busy.pop(hotkey, None)

    def tried(self, kind: Break, hotkey: Hotkey, failed: bool) -> None:
        """One attempt of this machine has ended."""
        of_kind = self._attempts.setdefault(kind, {})
        before = of_kind.get(hotkey, Attempts(0, 0))
        of_kind[hotkey] = Attempts(before.made + 1, before.failed + failed)

    def frozen(self, now_s: float, lives: Callable[[Hotkey], bool]) -> None:
        """The round takes no more: of what has not arrived the rate is at most what the time so far shows. Who is gone
        is not slow. What comes later is not timed, as its sender may rest before it goes on."""
        for pending in self._pending.values():
            if lives(pending.name[2]):
                sample = _rate(pending.size_bytes, now_s - pending.since_s)
                self._note(Kind.UPLINK, pending.name[2], Sample(sample.rate, censored=True))
        self._pending.clear()

    def worked(self, watched: Mapping[Hotkey, tuple[int, float]]) -> None:
        """Validated tokens, and the seconds of work that this process watched."""
        for hotkey, (tokens, seconds) in watched.items():
            if tokens > 0 and seconds > 0:
                self._note(Kind.COMPUTE, hotkey, Sample(tokens / seconds))

    def read(self, hotkey: Hotkey, size_bytes: int, took_s: float) -> None:
        """A miner has read so much for its duties, and told what follows from it."""
        if size_bytes > 0:
            self._note(Kind.DOWNLINK, hotkey, _rate(size_bytes, took_s))

    def probed(self, hotkey: Hotkey, shown: Level) -> None:
        """Its downlink, by a probe, where no round shows it."""
        self._note(Kind.DOWNLINK, hotkey, Sample(math.exp(shown.log_rate), shown.at_most))

    def read_here(self, transfers: Iterable[tuple[int, float]]) -> None:
        """This process has read objects of so many bytes, in so many seconds each. A time that no clock saw says
        nothing."""
        self._own.extend(Sample(size / took_s) for size, took_s in transfers if size > 0 and took_s > 0)

    def disturbed(self) -> None:
        """Time has passed that does not count: what was under way meanwhile is not timed, and what failed is nobody's
        fault."""
        self._pending.clear()
        self._own.clear()
        self._attempts.clear()
        self._came.clear()
        self._cut.clear()
        self.presence.clear()
        self.hearsay.clear()

    def take(self, round_id: RoundId) -> Evidence:
        """All since the last call, as the evidence of a round."""
        samples = {kind: {h: tuple(held) for h, held in of_kind.items()} for kind, of_kind in self._samples.items()}
        own = {Kind.DOWNLINK: tuple(self._own)} if self._own else {}
        self.clear()
        return Evidence(round_id, samples, own)

    def take_attempts(self, now_s: float) -> Seen:
        """What was tried since the last call, and what of it failed."""
        self._count_uploads()
        found, self._attempts = self._attempts, {}
        flaps = self.presence.take(now_s)
        return {**found, Break.FLAP: flaps} if flaps else found

    def forget(self, keep: Callable[[Hotkey], bool]) -> None:
        """Drop machines that are gone for good."""
        self.presence.forget(keep)
        self.busy = {hotkey: times for hotkey, times in self.busy.items() if keep(hotkey)}

    def clear(self) -> None:
        """Forget what was seen, such as in an earlier lead; what is under way goes on."""
        self._samples = {kind: {} for kind in Kind}
        self._own.clear()

    def _count_uploads(self) -> None:
        """An upload is one attempt, however often it had to begin; one that did not arrive and was not cut short is
        none, as it may be slow, or its sender gone."""
        for name in self._came | self._cut:
            self.tried(Break.TRUNCATE, name[2], failed=name in self._cut)
        self._came, self._cut = set(), set()

    def _note(self, kind: Kind, hotkey: Hotkey, sample: Sample) -> None:
        self._samples[kind].setdefault(hotkey, deque(maxlen=MAX_SAMPLES)).append(sample)


def _rate(size_bytes: int, took_s: float) -> Sample:
    return Sample(size_bytes / max(LEAST_S, took_s))
