"""What the watchdog is told and what it says: frozen facts of one moment. Pure.

Times named ``since_s`` or ``…_s`` of an event are on the caller's monotonic clock, as ``now_s`` is. ``Limits`` derives
from the round's deadlines when something counts as standing still: what stands still is told within one deadline.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from common import timeouts
from validator.round.deadlines import Deadlines

Level = Literal["run", "round", "transfer"]
FaultKind = Literal["storage", "object", "chain", "refused"]


@dataclass(frozen=True)
class Stall:
    """Something that makes no progress."""

    code: str
    level: Level
    for_s: float
    """So long it has stood still."""
    text: str
    """What stands still, why, what it waits for, what an operator can do."""
    holds: bool
    """Whether a miner that has not begun yet had better wait until this is over: it could not help."""
    subject: str = ""
    """Which one, where a code can stand several times."""


@dataclass(frozen=True)
class Limits:
    """Seconds without progress after which each kind counts as standing still."""

    trouble_s: float
    """Storage, chain or log refuse or do not answer."""
    step_s: float
    """One step of the driver, beside judging and merging."""
    merge_s: float
    """One step of the driver while it judges or merges."""
    members_s: float
    """Nobody is alive, or nobody trains."""
    quiet_s: float
    """An open or closing round in which nothing at all moves."""
    transfer_s: float
    """An upload, or a read of our own, of which no byte moves."""
    overdue_s: float
    """After a deadline that the round machine should have acted on."""
    lease_s: float
    """A lease that nobody renews, though this process may lead."""
    round_s: float
    """The longest that a round can take: no commit for longer."""

    @classmethod
    def of(cls, times: Deadlines) -> Limits:
        """Those of a run's rounds."""
        still_s = timeouts.STILL_S
        return cls(
            trouble_s=timeouts.AWAY_TOLD_S,
            step_s=max(still_s, times.submit_s),
            merge_s=times.finish_s,
            members_s=max(times.member_timeout_s, times.submit_s),
            quiet_s=max(still_s, times.submit_s, times.member_timeout_s),
            transfer_s=max(timeouts.BULK_STALL_S, min(still_s, times.submit_s)),
            overdue_s=timeouts.ASLEEP_S,
            lease_s=2 * timeouts.LEASE_S,
            round_s=times.longest_s,
        )


@dataclass(frozen=True)
class Fault:
    """What keeps the driver from going on."""

    kind: FaultKind
    said: str
    """By the other end, or of it."""
    since_s: float


@dataclass(frozen=True)
class Step:
    """What the driver is at: it has not come back from it."""

    doing: str
    since_s: float
    merging: bool


@dataclass(frozen=True)
class Miner:
    """One miner, by what this process knows of it."""

    name: str
    live: bool
    awaited: bool
    """The round waits for it."""
    doing: str
    """By its newest heartbeat."""
    silent_s: float
    rate: float
    """Tokens per second."""

    def told(self) -> str:
        return f"{self.name} ({self.doing or 'not heard yet'}, last heard {self.silent_s:.0f} s ago)"


@dataclass(frozen=True)
class RoundLook:
    """The open round as its leader holds it."""

    round: int
    phase: str
    since_s: float
    """When the phase began."""
    deadline_s: float | None
    moved_s: float
    """When anything of it last moved: a log entry, tokens, bytes arriving, an object checked."""
    lived_s: float
    """When a live miner was last there."""
    trained_s: float
    """When somebody last trained for it."""
    tokens: int
    """Trained for it by those who live, and what the others have brought."""
    quorum_tokens: int
    miners: tuple[Miner, ...]


@dataclass(frozen=True)
class Transfer:
    """A miner's upload, by its heartbeats and its receipt; or a read of our own."""

    who: str
    """The miner; empty for a read of our own."""
    what: str
    moved_s: float
    """When its bytes last grew."""
    sent_bytes: int | None
    size_bytes: int | None
    note: str = ""
    """What the other end says of it."""


@dataclass(frozen=True)
class Following:
    """What a process that does not lead knows of who does."""

    leader: str | None
    """None: nobody has led yet."""
    term: int
    lease_s: float | None
    """When its lease was first seen as it is; None before the first look."""
    entry_s: float
    """When the log last grew."""
    reason: str
    """Why this process does not lead."""


@dataclass(frozen=True)
class Facts:
    """Everything that bears on progress at one moment."""

    now_s: float
    head: int
    committed_s: float
    """When the head was last seen to change, or this process began."""
    resting: bool = False
    """The run has reached what this process was started for."""
    paused: str = ""
    paused_s: float = 0.0
    step: Step | None = None
    fault: Fault | None = None
    round: RoundLook | None = None
    transfers: tuple[Transfer, ...] = ()
    following: Following | None = None
    aborted: tuple[str, ...] = ()
    """Codes of the rounds that were aborted on the head, oldest first."""
    aborted_s: float = 0.0
    """When the first of them was seen."""
    chain: Fault | None = None
    """The chain is away though the rounds go on."""
    seat_lost_s: float | None = None
    """Since when this validator's hotkey has no seat, by the chain."""
