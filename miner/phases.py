"""What a miner does next: one pure function of what it knows.

The log is the truth about rounds and revisions; the leader's order only says when to hand in. Invariants: a round
that ended is settled before anything else, so that its work is never counted twice; nothing is trained on a revision
that is not the head; without any order (the leader is away) training goes on.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from common.units import Revision, RoundId

Order = Literal["train", "submit", "wait"]


class Move(StrEnum):
    """The next thing to do."""

    SETTLE = "settle"
    """Put the outcome of a round that ended into the residual, and on disk."""
    SYNC = "sync"
    """Get the head revision and prove its hash."""
    BEGIN = "begin"
    """Start training for the open round."""
    TRAIN = "train"
    """Let the training thread go on."""
    SUBMIT = "submit"
    """Stop after the current step, encode, and store the submission on disk."""
    DELIVER = "deliver"
    """Announce, upload and complete the stored submission."""
    WAIT = "wait"
    """Nothing to do until the log or the leader says something new."""


@dataclass(frozen=True)
class Facts:
    """What the decision rests on."""

    head: Revision
    open_round: RoundId | None
    frozen: bool
    """The open round has its plan."""
    held: Revision | None
    """The revision whose weights this miner has proved."""
    begun: RoundId | None
    """The round in the training thread."""
    carried: RoundId | None
    """The round of work that was saved at an orderly stop and is not in the training thread."""
    pending: RoundId | None
    """The round of the submission on disk."""
    done: bool
    """The pending submission was confirmed by the leader, or refused for good."""
    gave_up: bool
    """The work of the begun round can't be submitted."""
    worked: bool
    """At least one inner step was taken in the begun round."""
    order: Order | None
    """The leader's newest word on the open round."""
    behind: bool
    """The leader knows of log entries that this miner has not read."""
    draining: bool
    """The process is about to end."""


def decide(facts: Facts) -> tuple[Move, str]:
    """The next move, and why."""
    for round_id in (facts.pending, facts.begun, facts.carried):
        if round_id is not None and round_id != facts.open_round:
            return Move.SETTLE, f"round {round_id} has ended"
    if facts.draining:
        return Move.WAIT, "stopping"
    if facts.held != facts.head:
        return Move.SYNC, f"the head is revision {facts.head}"
    if facts.open_round is None:
        return Move.WAIT, "no round is open; waiting for the leader to open one"
    if facts.pending is not None:
        return _with_submission(facts)
    if facts.frozen:
        return Move.WAIT, f"round {facts.open_round} is frozen; waiting for its revision"
    if facts.begun is None:
        return _without_work(facts)
    return _with_work(facts)


def _with_submission(facts: Facts) -> tuple[Move, str]:
    if facts.frozen:
        return Move.WAIT, f"round {facts.open_round} is frozen; waiting for its revision"
    if facts.done:
        return Move.WAIT, f"handed in for round {facts.open_round}; waiting for the others"
    return Move.DELIVER, f"sending the delta of round {facts.open_round}"


def _without_work(facts: Facts) -> tuple[Move, str]:
    if facts.behind:
        return Move.WAIT, "the log has news; reading it before joining a round"
    if facts.order in ("submit", "wait") and facts.carried is None:
        return Move.WAIT, f"round {facts.open_round} is closing; joining the next one"
    return Move.BEGIN, f"joining round {facts.open_round}"


def _with_work(facts: Facts) -> tuple[Move, str]:
    if facts.gave_up:
        return Move.WAIT, f"nothing to hand in for round {facts.open_round}; waiting for its end"
    if facts.order == "submit" and facts.worked:
        return Move.SUBMIT, f"the leader closes round {facts.open_round}"
    if facts.order == "wait":
        return Move.WAIT, f"the leader takes no more work for round {facts.open_round}"
    away = "" if facts.order else " (no word from the leader)"
    return Move.TRAIN, f"training for round {facts.open_round}{away}"
