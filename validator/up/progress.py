"""How far a run of R rounds is, from what the validator says. Pure.

A run of ``brigade up --rounds R`` is over when R revisions more are committed, the report of the last round is in the
bucket and its scores are in the weights on chain. Stalls are noticed: no commit for a few times the longest round.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from common import timeouts
from common.spec import RoundSpec
from common.timeouts import CHAIN_CALL_S
from common.units import Revision, RoundId
from common.wire import Status

PATIENCE_ROUNDS = 4
"""Longest rounds without a commit after which a run with a goal is given up."""


class Stage(StrEnum):
    """What is still to come."""

    TRAINING = "training"
    REPORTING = "reporting"
    PAYING = "paying"
    DONE = "done"


@dataclass(frozen=True)
class Mark:
    """The last commit that was noticed, and when on our clock."""

    revision: int
    at_s: float


def stage(status: Status, until: Revision | None, last_round: RoundId | None) -> Stage:
    """Where the run stands. ``last_round`` is the round that made revision ``until``, once the log tells."""
    if until is None or status.head_revision < until or last_round is None:
        return Stage.TRAINING
    if status.reported_round is None or status.reported_round < last_round:
        return Stage.REPORTING
    if status.weights_round is None or status.weights_round < last_round:
        return Stage.PAYING
    return Stage.DONE


def observe(mark: Mark | None, status: Status, now_s: float) -> Mark:
    """The mark after a status."""
    if mark is None or status.head_revision > mark.revision:
        return Mark(status.head_revision, now_s)
    return mark


def stall_limit_s(rounds: RoundSpec) -> float:
    """Time without a commit after which something is wrong."""
    return PATIENCE_ROUNDS * (rounds.train_deadline_s + rounds.submit_deadline_s)


def pay_within_s(tempo_blocks: int, rate_limit_blocks: int, block_time_s: float) -> float:
    """Time from the last commit to its scores on chain: the report, up to two epochs (weights are set once in each),
    the rate limit, and one call to the chain."""
    return timeouts.REPORT_WITHIN_S + CHAIN_CALL_S + (2 * tempo_blocks + rate_limit_blocks) * block_time_s


def stalled(mark: Mark, now_s: float, rounds: RoundSpec) -> str:
    """Why the run counts as stalled, or nothing."""
    quiet_s = now_s - mark.at_s
    if quiet_s <= stall_limit_s(rounds):
        return ""
    return f"no revision was committed for {quiet_s:.0f} s, the last was {mark.revision}"
