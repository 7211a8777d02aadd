"""Whether the next round opens: content that fails again and again stops the run, lack of members never does."""

from __future__ import annotations

import dataclasses

import pytest

from common.runlog.entries import RoundAborted
from common.runlog.rules import MAX_FAILURES
from common.runlog.state import OpenRound, Pause, RunState
from common.units import Revision, RoundId, Sha256
from tests.support.specs import tiny_spec
from validator.pausing import pause_for
from validator.round.opening import next_opening


def run(**changes: object) -> RunState:
    state = RunState(tiny_spec(), 5, Sha256("0" * 64), {}, Revision(2), RoundId(7))
    return dataclasses.replace(state, **changes)  # type: ignore[arg-type]


def test_rounds_open_until_the_goal_is_reached() -> None:
    assert next_opening(run()).do == "open"
    assert next_opening(run(rounds_aborted=50)).do == "open", "aborted for lack of members, whatever their number"
    assert next_opening(run(), Revision(3)).do == "open"
    assert next_opening(run(), Revision(2)).do == "rest"


def test_three_failures_for_content_pause_the_run_with_evidence() -> None:
    failures = ("loss_guard", "all_rejected", "loss_guard")[:MAX_FAILURES]
    assert next_opening(run(failures=failures[:-1])).do == "open"
    assert next_opening(run(failures=failures)).do == "pause"
    told = [RoundAborted(RoundId(n), Revision(2), code, (f"fact {n}",)) for n, code in enumerate(failures)]
    entry, reason = pause_for(run(failures=failures), told)
    assert entry.code == failures[-1]
    assert entry.evidence == tuple(f"round {n} {code}: fact {n}" for n, code in enumerate(failures))
    assert all(code in reason for code in failures)


def test_a_paused_run_waits_for_the_owners_order() -> None:
    paused = run(paused=Pause(4, "loss_guard", ("why",), 0), failures=("loss_guard",) * MAX_FAILURES)
    found = next_opening(paused)
    assert found.do == "wait"
    assert "brigade run resume" in found.reason
    assert next_opening(paused, order=Sha256("a" * 64)).do == "resume"


def test_no_round_is_opened_while_one_is_open() -> None:
    with pytest.raises(ValueError, match="round 6 is open"):
        next_opening(run(open_round=OpenRound(RoundId(6), Revision(2), 0)))
