"""What the round machine is told and what it decides: frozen facts, phases and actions. Pure.

Times are seconds of one monotonic clock, the caller's. Invariant: nothing here changes after it was made; the driver
makes fresh facts for every look.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from common.spec import RunSpec
from common.units import Hotkey, Revision, RoundId


class Phase(StrEnum):
    """Where a round stands. Only ever forward."""

    OPEN = "open"
    CLOSING = "closing"
    FROZEN = "frozen"
    REDUCED = "reduced"
    COMMITTED = "committed"
    ABORTED = "aborted"


class Action(StrEnum):
    """What the driver is to do now. It repeats until the facts say that it was done."""

    WAIT = "wait"
    """Nothing but look again."""
    JUDGE = "judge"
    """Run the gates over what was delivered."""
    PLAN = "plan"
    """Append ``round_frozen``."""
    REDUCE = "reduce"
    """Merge what the plan accepted and store the update."""
    COMMIT = "commit"
    """Append ``revision_committed``."""
    ABORT = "abort"
    """Append ``round_aborted`` with the state's code."""
    END = "end"
    """Leave this round: the log has ended it."""


@dataclass(frozen=True)
class MemberFacts:
    """One miner with a seat in the round."""

    hotkey: Hotkey
    live: bool
    """Heard within the member timeout, or still in the grace of a new leader."""
    heard: bool
    """Whether it has spoken to this process at all; if not, what it does is unknown."""
    trains: bool
    """Has taken inner steps for this round."""
    tokens: int
    """Trained for this round, as it says."""
    delivered: bool
    """Everything it announced has been uploaded and checked."""
    awaited: bool = True
    """Whether the round waits for it and its tokens: not if it let the last rounds down that others made."""


@dataclass(frozen=True)
class Verdict:
    """What the gates found."""

    tokens: int
    """Validated tokens of the accepted submissions."""
    accepted: int
    rejected: int
    shards: int
    """Shards with at least one accepted submission."""


@dataclass(frozen=True)
class RoundFacts:
    """Everything that bears on the round at one moment."""

    members: tuple[MemberFacts, ...] = ()
    verdict: Verdict | None = None
    planned: bool = False
    """The log holds the plan."""
    reduced: bool = False
    """Update and snapshot of every shard are in the bucket."""
    ended: Phase | None = None
    """COMMITTED or ABORTED once the log says so."""
    failure: str = ""
    """Typed reason why the plan can't be merged, ever."""


@dataclass(frozen=True)
class RoundPolicy:
    """The limits of a round. ValueError when they contradict each other."""

    target_tokens: int
    quorum_tokens: int
    train_deadline_s: float
    submit_deadline_s: float
    finish_deadline_s: float
    """Longest time from the freeze to the commit; then the round is given up."""
    num_shards: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.quorum_tokens <= self.target_tokens:
            raise ValueError("quorum_tokens must be in (0, target_tokens]")
        if min(self.train_deadline_s, self.submit_deadline_s, self.finish_deadline_s) <= 0 or self.num_shards < 1:
            raise ValueError("deadlines and num_shards must be positive")


LEAST_FINISH_S = 120.0  # judging and merging are the leader's own work: generous, since giving up loses the round


def policy_of(spec: RunSpec) -> RoundPolicy:
    """The limits that a run spec sets."""
    limits = spec.round
    return RoundPolicy(
        target_tokens=limits.target_tokens,
        quorum_tokens=limits.quorum_tokens,
        train_deadline_s=limits.train_deadline_s,
        submit_deadline_s=limits.submit_deadline_s,
        finish_deadline_s=max(LEAST_FINISH_S, 2 * limits.submit_deadline_s),
        num_shards=spec.num_shards,
    )


@dataclass(frozen=True)
class RoundState:
    """What the machine remembers of one round."""

    round: RoundId
    base_revision: Revision
    phase: Phase = Phase.OPEN
    since_s: float = 0.0
    """When the phase began."""
    deadline_s: float | None = None
    """When the phase ends whatever happens; None before the first member trains."""
    code: str = ""
    """Why the round is given up; empty while it is not."""


@dataclass(frozen=True)
class Decision:
    """The next state, what to do, and why in plain words."""

    state: RoundState
    action: Action
    reason: str
