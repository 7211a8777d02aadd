"""The time that one member was seen at work, on the receiver's clock: what bounds the tokens that it may claim. Pure.

A work clock runs while its heartbeats tell of new tokens and stands while they tell of rest. A submission stands at a
*mark* of that clock; the work in it is what the clock ran since the last mark that a plan named. Where the true moment
of a mark is not known it is taken in the sender's favour: early as the beginning of the next work, late as its end.

Invariant: the seconds of a member that was watched from its first token on are never fewer than it really worked; of
all others they are unknown, until a plan names a mark that this process saw. Bounded: so many marks, so many beats.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from common.units import RoundId, Sha256
from common.wire import Heartbeat, Phase
from validator.round.tokens import Seen

BEATS = 16
"""Heartbeats in which the moment of a mark is looked for: encoding takes time before the manifest comes."""
MARKS = 1024
RESTS = frozenset({Phase.STARTING, Phase.SYNCING, Phase.WAITING, Phase.APPLYING})
SENDING = frozenset({Phase.ENCODING, Phase.UPLOADING, Phase.DRAINING})
UNKNOWN = Seen(None, False)


@dataclass(slots=True)
class WorkTime:
    """The work clock of one member. Numbers are seconds of it, or moments of the receiver's."""

    worked_s: float = 0.0
    anchor_s: float = 0.0
    """The receiver's time up to which work is counted, or at which it rested last."""
    begun_s: float | None = None
    """Where the work clock stood at the last mark that a plan named, at the earliest; None when nobody here knows."""
    receipted_s: float = 0.0
    """The same at the latest, when its manifest came."""
    marks: dict[Sha256, tuple[float, float]] = field(default_factory=dict)
    """Of each receipted delta where the clock stood: at the earliest, at the latest."""
    beats: deque[tuple[RoundId, int, float]] = field(default_factory=lambda: deque(maxlen=BEATS))
    """Round, tokens told for it, and the work clock, of the newest heartbeats."""

    @property
    def seconds(self) -> float | None:
        """Worked since the last mark that a plan named; None when unknown."""
        return None if self.begun_s is None else self.worked_s - self.begun_s

    def hear(self, beat: Heartbeat, before: Heartbeat | None, before_s: float, now_s: float, overlap: bool) -> None:
        """A heartbeat came, newer than ``before``, which came at ``before_s``."""
        if before is None:
            self.anchor_s = now_s
            self.begun_s = 0.0 if _untouched(beat) else None
        elif before.session != beat.session:
            # What its new process did before it spoke; the pause between the two was no work.
            self.anchor_s = max(before_s, now_s - beat.counters.online_s)
        if beat.counters.tokens > (before.counters.tokens if before and before.session == beat.session else 0):
            self.worked_s += max(0.0, now_s - self.anchor_s)
            self.anchor_s = now_s
        elif beat.phase in RESTS or (beat.phase in SENDING and not overlap):
            self.anchor_s = now_s
        if beat.round is not None:
            self.beats.append((RoundId(beat.round), beat.round_tokens, self.worked_s))

    def mark(self, round_id: RoundId, delta: Sha256, tokens: int, now_s: float) -> None:
        """A manifest of so many tokens came now, for the first time."""
        if delta in self.marks:
            return
        if len(self.marks) >= MARKS:
            del self.marks[next(iter(self.marks))]
        earlier = [clock for told_round, told, clock in self.beats if told_round == round_id and told < tokens]
        last = next(reversed(self.marks.values()))[0] if self.marks else self.begun_s or 0.0
        # The newest heartbeat is older than the manifest: what it did since may be in it.
        self.marks[delta] = max([last, *earlier]), self.worked_s + max(0.0, now_s - self.anchor_s)

    def seen(self, delta: Sha256) -> Seen:
        """The work in a receipted submission."""
        mark = self.marks.get(delta)
        if mark is None:
            return UNKNOWN
        if self.begun_s is None:
            return Seen(None, False, worked_s=mark[1])
        # From receipt to receipt: what encoding takes is in neither of the two, so it does not lengthen the time.
        return Seen(max(0.0, mark[1] - self.begun_s), True, max(0.0, mark[1] - self.receipted_s))

    def settle(self, delta: Sha256) -> None:
        """A plan that became a revision names this one: the next work begins at its mark."""
        mark = self.marks.get(delta)
        self.begun_s = None if mark is None else mark[0]
        if mark is not None:
            self.receipted_s = mark[1]
            self.marks = {other: place for other, place in self.marks.items() if place[0] > mark[0]}


def _untouched(beat: Heartbeat) -> bool:
    return beat.counters.tokens == 0 and beat.round_tokens == 0 and beat.ahead_tokens == 0
