"""When a run is over, and when it is given up."""

from __future__ import annotations

from common.units import Revision, RoundId
from tests.support.specs import tiny_spec
from tests.up.support import status
from validator.up.progress import Stage, observe, pay_within_s, stage, stall_limit_s, stalled

ROUNDS = tiny_spec().round


def test_the_stages_of_a_run() -> None:
    until, last = Revision(3), RoundId(4)
    assert stage(status(2), until, None) is Stage.TRAINING
    assert stage(status(3, reported_round=3), until, last) is Stage.REPORTING
    assert stage(status(3, reported_round=4, weights_round=3), until, last) is Stage.PAYING
    assert stage(status(3, reported_round=4, weights_round=4), until, last) is Stage.DONE
    assert stage(status(5, reported_round=9, weights_round=9), until, last) is Stage.DONE


def test_without_a_goal_a_run_is_never_over() -> None:
    assert stage(status(100, reported_round=200, weights_round=200), None, RoundId(7)) is Stage.TRAINING


def test_only_commits_count_as_progress() -> None:
    mark = observe(None, status(1), now_s=10.0)
    assert observe(mark, status(1), now_s=500.0) == mark
    assert observe(mark, status(2), now_s=500.0).at_s == 500.0
    limit_s = stall_limit_s(ROUNDS)
    assert stalled(mark, 10.0 + limit_s, ROUNDS) == ""
    assert "the last was 1" in stalled(mark, 11.0 + limit_s, ROUNDS)


def test_the_time_to_pay_follows_the_chains_blocks() -> None:
    quick, slow = pay_within_s(20, 10, 0.25), pay_within_s(20, 10, 12.0)
    assert slow - quick == (2 * 20 + 10) * (12.0 - 0.25)
    assert pay_within_s(360, 100, 12.0) > 2 * 360 * 12.0
