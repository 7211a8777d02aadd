"""What the round machine is told and what it decides: frozen facts, phases and actions. Pure.

Times are seconds of one monotonic clock, the caller's. Invariant: nothing here changes after it was made; the driver
makes fresh facts for every look.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

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
    """Append ``round_frozen``, attempt 0."""
    REDUCE = "reduce"
    """Merge what the newest plan accepted, try it on held-out text, and store the update."""
    REPLAN = "replan"
    """Append the next attempt: the plan without the suspects of ``RoundFacts.harm``."""
    COMMIT = "commit"
    """Append ``revision_committed``."""
    ABORT = "abort"
    """Append ``round_aborted`` with code and evidence of the state."""
    END = "end"
    """Leave this round: the log has ended it."""


@dataclass(frozen=True, slots=True)
class MemberFacts:
    """One miner with a seat in the round."""

    hotkey: Hotkey
    live: bool
    """Heard within the member timeout, or still in the grace of a new leader; draining counts while it delivers."""
    heard: bool
    """Whether it has spoken to this process at all; if not, what it does is unknown."""
    trains: bool
    """Has taken inner steps for this round."""
    tokens: int
    """Trained for this round, as it says, cut to what time and evidence allow."""
    delivered: bool
    """Its final submission is there and checked, at every place that it announced."""
    awaited: bool = True
    """Whether the round waits for it and its tokens: not if it let the last rounds down that others made."""
    rate: float = 0.0
    """Tokens per second."""
    dripped_tokens: int = 0
    """Of its newest complete submission, drip or final: what nothing can take away any more."""
    eta_s: float | None = None
    """Predicted seconds until its final submission will have arrived; None when nothing predicts it."""
    can_be_late: bool = False
    """Whether the next plan could still take what this one misses, at the weight of late tokens."""

    @property
    def awaited_tokens(self) -> int:
        """What waiting for it can bring: its tokens that are not there yet."""
        return max(0, self.tokens - self.dripped_tokens)


@dataclass(frozen=True)
class Verdict:
    """What the gates found, or what is left of it for another attempt."""

    tokens: int
    """Validated tokens of the accepted submissions, late ones by their weight: what a commit merges."""
    accepted: int
    rejected: int
    shards: int
    """Shards with at least one accepted submission."""
    deferred: int = 0
    refused_tokens: int = 0
    """Validated tokens of those that came whole and were rejected for what they hold."""


@dataclass(frozen=True)
class Harm:
    """What the guard found of the merge of one attempt: it does harm."""

    attempt: int
    evidence: tuple[str, ...]
    """What was measured, one fact a line."""
    suspects: tuple[Hotkey, ...]
    """Accepted members that a trial of each delta alone names; none when nobody can be named."""
    left: Verdict
    """Of the plan without them."""


@dataclass(frozen=True)
class RoundFacts:
    """Everything that bears on the round at one moment."""

    members: tuple[MemberFacts, ...] = ()
    verdict: Verdict | None = None
    attempt: int | None = None
    """Of the newest plan of this round in the log; None before the first."""
    harm: Harm | None = None
    """The guard's outcome when it is bad. One of an earlier attempt is ignored."""
    reduced: bool = False
    """Update and snapshot of every shard are in the bucket, merged by the newest plan, and the guard lets it pass."""
    ended: Phase | None = None
    """COMMITTED or ABORTED once the log says so."""
    failure: str = ""
    """Typed reason why the plan can't be merged, ever."""
    failure_evidence: tuple[str, ...] = ()
    shards: int = 1
    """Shards of which something has come whole."""

    @property
    def planned(self) -> bool:
        """The log holds a plan."""
        return self.attempt is not None


@dataclass(frozen=True)
class RoundPolicy:
    """The limits of a round, made by ``deadlines.policy_of``. ValueError when they contradict each other."""

    target_tokens: int
    quorum_tokens: int
    train_deadline_s: float
    submit_deadline_s: float
    finish_deadline_s: float
    """Longest time from the freeze to the commit, all attempts; then the round is given up."""
    num_shards: int = 1
    late_weight: float = 0.5
    """What a late token counts for."""
    waste: float = 1.0
    """Share of their work that those who wait lose by waiting: all without overlap, little with it."""
    least_open_s: float = 0.0
    """A round closes no sooner. Longer with each round that aborted on the base: the same would come of the same."""

    def __post_init__(self) -> None:
        if not 0 < self.quorum_tokens <= self.target_tokens:
            raise ValueError("quorum_tokens must be in (0, target_tokens]")
        if min(self.train_deadline_s, self.submit_deadline_s, self.finish_deadline_s) <= 0 or self.num_shards < 1:
            raise ValueError("deadlines and num_shards must be positive")
        if not 0 <= self.least_open_s <= self.train_deadline_s:
            raise ValueError("least_open_s must be in [0, train_deadline_s]")
        if not (0 < self.late_weight <= 1 and 0 <= self.waste <= 1):
            raise ValueError("late_weight must be in (0, 1] and waste in [0, 1]")


@dataclass(frozen=True)
class Held:
    """Time that no deadline counts and that the next round takes over, since its work began in it."""

    seconds: float = 0.0
    unheard_s: float = 0.0
    """Of that, what passed before this process led: it heard nobody then."""


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
    quorum_s: float | None = None
    """When, while closing, what had arrived reached the quorum: from then on waiting is a choice."""
    code: str = ""
    """Why the round is given up; empty while it is not."""
    evidence: tuple[str, ...] = ()
    """Of what made it give up."""
    held_s: float = 0.0
    """Time beyond the planned length in which its work can have been done: see ``core``."""
    unheard_s: float = 0.0
    """Of that, what passed before this process led: it heard nobody then."""
    held_after_s: float = 0.0
    """Of the held time, what has passed since CLOSING: the work of the next round begins there."""
    unheard_after_s: float = 0.0
    """Of that, what passed before this process led."""


@dataclass(frozen=True)
class Decision:
    """The next state, what to do, and why in plain words."""

    state: RoundState
    action: Action
    reason: str
    until_s: float | None = None
    """While waiting: the moment from which time alone may change the decision; None: only new facts can."""
