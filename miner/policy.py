"""What a miner does next: one pure function of what it knows.

The log is the truth about rounds and revisions; the leader's order only says when to hand in. Training, uploads and the
fetching of a revision go on beside each other; a move starts one of them, or changes what is trained. Invariants: what
a plan said is settled before anything is handed in on the new base, so that no work is counted twice; a submission is
made for the open round on the base that is trained on, or not at all; without any order (the leader is away) training
goes on.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from common.units import Revision, RoundId
from miner.deadlines import Deadlines

Order = Literal["train", "submit", "wait"]
EARLY_SHARE = 0.25
"""A slow uplink's early submission holds at least this part of a round's steps: less is not worth an upload."""


class Move(StrEnum):
    """The next thing to do."""

    FETCH = "fetch"
    """Start fetching the dataset."""
    SYNC = "sync"
    """Start fetching the head revision, and prove its hash; training goes on meanwhile."""
    RESTART = "restart"
    """Honour a rollback, or a cold start: let go of what is void, and begin anew on the head."""
    SETTLE = "settle"
    """Take the plans' word up to the revision that is held, and move the training onto it."""
    BEGIN = "begin"
    """Start training."""
    RESTREAM = "restream"
    """Take the samples of the round that has opened."""
    DRIP = "drip"
    """Mark, encode and store what there is; training goes on."""
    FINAL = "final"
    """The same as the last submission of this round."""
    DELIVER = "deliver"
    """Start to announce, upload and complete a stored submission."""
    RECALL = "recall"
    """Break off an upload that nobody waits for any more."""
    TRAIN = "train"
    """Nothing new: take inner steps until something happens."""
    REST = "rest"
    """Nothing new: wait, without training, until something happens."""
    LEAVE = "leave"
    """Save and end the process."""


Made = Literal["drip", "final"]


@dataclass(frozen=True)
class Facts:
    """What the decision rests on. The first group is the log's and the leader's, the others are this miner's."""

    head: Revision
    open_round: RoundId | None
    open_base: Revision | None
    frozen: bool
    """The open round has its plan."""
    behind: bool
    """The leader knows of log entries that this miner has not read."""
    order: Order | None
    """The leader's newest word on the open round."""
    freeze_in_s: float | None
    """Until uploads must be there, by the leader's word."""
    idle: bool
    """The leader has said several times that no round is open."""

    restart: bool
    """The log has a rollback or a cold start that this miner has not honoured."""
    ready: bool
    """The dataset is there."""
    fetching: bool
    held: Revision | None
    """The revision whose weights this miner has proved."""
    syncing: bool
    settled: Revision | None
    """The revision up to which the plans' word is in the account."""

    base: Revision | None
    """The revision in the training thread; None before the beginning."""
    stream: RoundId | None
    """The round whose samples are taken."""
    steps: int
    """Inner steps since the last settled mark."""
    nominal_steps: int
    """Inner steps of a round on the base."""
    fresh_steps: int
    """Of the steps those that no submission for the open round holds."""
    sated: bool
    """There is more unsettled work than any round could want."""

    making: Made | None
    """A submission that is being encoded."""
    newest: Made | None
    """The latest submission for the open round, or a final one that could not be made."""
    since_s: float
    """Since the last submission was begun, or training."""
    upload_s: float | None
    """What encoding and sending a submission should take; None before anything was sent."""

    to_deliver: bool
    """A stored submission waits to be delivered."""
    delivering: Made | Literal["pending"] | None
    recall: bool
    """What is being delivered has been replaced, or its round is over."""
    left_s: float | None
    """Until the upload under way should be done."""

    draining: bool
    """The process is about to end."""
    hurry: bool
    """It is time to leave."""
    stalled: str = ""
    """Why the run stands still, by log or leader: who has not begun yet waits until that is over."""
    asking: bool = False
    """The leader was asked whether the run goes on, and may still answer."""


def decide(facts: Facts, times: Deadlines, overlap: bool) -> tuple[Move, str]:
    """The next move, and why. ``overlap``: whether training goes on after the final submission."""
    if facts.restart and not facts.hurry:
        return Move.RESTART, "the run begins anew, as its log says"
    if facts.draining:
        return _drain(facts)
    return _prepare(facts) or _account(facts) or _hand_in(facts, times) or _go_on(facts, overlap)


def _prepare(facts: Facts) -> tuple[Move, str] | None:
    if _held_back(facts):
        return None
    if not facts.ready and not facts.fetching:
        return Move.FETCH, "fetching the dataset"
    if facts.held != facts.head and not facts.syncing:
        return Move.SYNC, f"the head is revision {facts.head}"
    return None


def _account(facts: Facts) -> tuple[Move, str] | None:
    """What must be true before anything is handed in."""
    if facts.held is not None and facts.held != facts.settled:
        return Move.SETTLE, f"revision {facts.held} is here"
    if facts.base is None:
        return _begin(facts)
    if _takes(facts) and facts.stream != facts.open_round:
        return Move.RESTREAM, f"round {facts.open_round} is open"
    return None


def _begin(facts: Facts) -> tuple[Move, str] | None:
    if not facts.ready or facts.held != facts.head or facts.open_base != facts.head:
        return None
    if _held_back(facts):
        return None
    if facts.behind:
        return Move.REST, "the log has news; reading it before joining a round"
    return Move.BEGIN, f"joining round {facts.open_round}"


def _hand_in(facts: Facts, times: Deadlines) -> tuple[Move, str] | None:
    if facts.recall:
        return Move.RECALL, "what is being sent is no longer wanted"
    if _takes(facts) and facts.making is None and facts.fresh_steps > 0:
        reason = _final_due(facts, times)
        if reason:
            return Move.FINAL, reason
        reason = _drip_due(facts, times)
        if reason:
            return Move.DRIP, reason
    if facts.to_deliver and facts.delivering is None:
        return Move.DELIVER, "sending what is stored"
    return None


def _final_due(facts: Facts, times: Deadlines) -> str:
    if facts.newest == "final" or _better_wait_for_drip(facts):
        return ""
    if facts.order == "submit":
        return f"the leader closes round {facts.open_round}"
    if facts.order != "train" or facts.upload_s is None or facts.freeze_in_s is None:
        return ""
    before_s = facts.left_s or 0.0 if facts.delivering == "pending" else 0.0
    late = times.needed_s(before_s + facts.upload_s) >= facts.freeze_in_s
    worth_it = facts.steps >= EARLY_SHARE * facts.nominal_steps
    if not (times.must_be_early(facts.upload_s) and late and worth_it):
        return ""
    return f"the upload takes {facts.upload_s:.0f} s, and uploads must be there in {facts.freeze_in_s:.0f} s"


def _better_wait_for_drip(facts: Facts) -> bool:
    """The drip under way will be there in time, and a later submission would not."""
    known = facts.left_s is not None and facts.freeze_in_s is not None and facts.upload_s is not None
    if facts.delivering != "drip" or not known:
        return False
    assert facts.left_s is not None
    assert facts.freeze_in_s is not None
    assert facts.upload_s is not None
    return facts.left_s <= facts.freeze_in_s < facts.upload_s


def _drip_due(facts: Facts, times: Deadlines) -> str:
    every_s = times.drip_every_s(facts.upload_s)
    if every_s is None or facts.since_s < every_s or facts.newest == "final" or facts.order in ("submit", "wait"):
        return ""
    if facts.delivering is not None or facts.to_deliver:
        return ""  # one upload at a time
    if facts.freeze_in_s is not None and facts.upload_s is not None and facts.freeze_in_s < 2 * facts.upload_s:
        return ""  # it would be in the way of the final one
    return f"{facts.since_s:.0f} s of work are in no submission"


def _go_on(facts: Facts, overlap: bool) -> tuple[Move, str]:
    if facts.base is None:
        return Move.REST, _why_not_begun(facts)
    if facts.sated:
        return Move.REST, "enough is trained ahead; waiting for a revision"
    if facts.idle and facts.open_round is None:
        return Move.REST, "the leader opens no round"
    if overlap:
        return Move.TRAIN, _what_for(facts)
    if facts.making == "final" or facts.newest == "final":
        return Move.REST, f"handed in for round {facts.open_round}; waiting for the others"
    if not _takes(facts) or facts.order == "wait":
        return Move.REST, "waiting for the next revision or round"
    return Move.TRAIN, _what_for(facts)


def _held_back(facts: Facts) -> bool:
    """Whether nothing is fetched or begun, since nobody new is of use to the run; a miner at work goes on."""
    return facts.base is None and (bool(facts.stalled) or facts.asking)


def _why_not_begun(facts: Facts) -> str:
    if facts.stalled:
        return f"waiting to begin, since the run stands still: {facts.stalled}"
    if facts.asking:
        return "asking the leader whether the run goes on"
    if not facts.ready:
        return "fetching the dataset"
    if facts.held != facts.head:
        return f"fetching revision {facts.head}"
    return "no round is open; waiting for the leader to open one"


def _what_for(facts: Facts) -> str:
    if facts.open_round is None:
        return f"training on revision {facts.base}, ahead of the next round"
    if facts.base != facts.open_base:
        return f"training on while revision {facts.head} arrives"
    if facts.frozen or facts.newest == "final":
        return f"round {facts.open_round} has what it gets; training ahead"
    away = "" if facts.order else " (no word from the leader)"
    return f"training for round {facts.open_round}{away}"


def _drain(facts: Facts) -> tuple[Move, str]:
    """The last submission, its delivery, and out."""
    if facts.hurry:
        return Move.LEAVE, "the notice is over"
    if facts.making is not None:
        return Move.REST, "encoding the last submission"
    if facts.recall:
        return Move.RECALL, "what is being sent is no longer wanted"
    if _takes(facts) and facts.settled == facts.base and facts.fresh_steps > 0 and facts.newest != "final":
        return Move.FINAL, "stopping: handing in what there is"
    if facts.delivering is not None:
        return Move.REST, "stopping: sending the last submission"
    if facts.to_deliver:
        return Move.DELIVER, "stopping: sending what is stored"
    return Move.LEAVE, "stopping: nothing is left to do"


def _takes(facts: Facts) -> bool:
    """Whether the open round is one that work on the present base can be handed in for."""
    opened = facts.open_round is not None and not facts.frozen
    return opened and facts.base is not None and facts.base == facts.open_base
