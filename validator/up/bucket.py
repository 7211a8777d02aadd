"""What the bucket alone tells of a run: for ``brigade status`` when no validator answers.

Who led last and when it was last heard, what is open, and the newest entries. Invariant: nothing is written; times of
entries come from their writers' clocks and are for people only.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from common import keys
from common.errors import Rejected
from common.runlog.lease import MAX_LEASE_BYTES, decode_lease
from common.runlog.state import RunState
from common.runlog.story import Line, tell
from common.store.port import ObjectMissing
from common.units import format_duration
from validator.run_place import Place

MOST_LINES = 5


@dataclass(frozen=True)
class FromBucket:
    """One look at a run's log and lease."""

    run: str
    head: int
    leader: str | None
    term: int
    lease: str
    """Who holds it, and when it was last renewed."""
    open: str
    """What the log has open, and what that waits for."""
    newest: tuple[str, ...]
    """The newest entries, oldest first."""

    def lines(self) -> list[str]:
        """For people."""
        led = f"{self.leader} led last (term {self.term})" if self.leader else "nobody has led yet"
        newest = [f"  {line}" for line in self.newest]
        return [f"run {self.run} by its bucket: revision {self.head}; {led}; {self.lease}", self.open, *newest]


def look(place: Place, now_s: float) -> FromBucket:
    """Read log and lease. ``now_s``: wall clock. Raises RemoteError when the bucket does not give them."""
    newest: deque[Line] = deque(maxlen=MOST_LINES)
    state: RunState | None = None
    for step in place.log().steps():
        newest.append(tell(step, state))
        state = step.state
    assert state is not None, "a log without a beginning is refused"
    leader = None if state.leader is None else str(state.leader)
    said = tuple(line.text() for line in newest)
    return FromBucket(place.run, state.head, leader, state.term, _lease(place, state, now_s), _open(state), said)


def _open(state: RunState) -> str:
    if state.moved is not None:
        return "the log says that the run has moved to another bucket"
    if state.paused is not None:
        return f"the run is paused ({state.paused.code}); its owner resumes it with `brigade run resume`"
    if state.open_round is None:
        return "no round is open; the next one waits for a validator that leads"
    opened = state.open_round
    what = "has its plan and waits to be merged" if opened.plan is not None else "takes what miners hand in"
    return f"round {opened.round} on revision {opened.base_revision} is open: it {what} by a validator that leads"


def _lease(place: Place, state: RunState, now_s: float) -> str:
    try:
        body = place.reader.fetch(keys.lease_key(place.run), max_bytes=MAX_LEASE_BYTES)
        lease = decode_lease(body, place.run, state.ever_validators)
    except ObjectMissing:
        return "nobody holds the lease"
    except Rejected as refusal:
        return f"the lease can't be read ({refusal.message})"
    return f"{lease.signer} held the lease for term {lease.term}{_renewed(place, now_s)}"


def _renewed(place: Place, now_s: float) -> str:
    """How long ago it was renewed, by the storage's clock and ours; without keys nobody can tell."""
    found = place.store.head(keys.lease_key(place.run)) if place.store is not None else None
    return "" if found is None else f" and renewed it {format_duration(max(0.0, now_s - found.modified_s))} ago"
