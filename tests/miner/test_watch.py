"""What a miner says of its own work that makes no progress: when, what it waits for, and when that is over."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from common.timeouts import FIRST_STEP_S, STEPS_STILL, STILL_S
from miner.stillness import Effort, Seen, look, step_limit_s
from tests.miner.leader import Leader
from tests.miner.mining import hand_in, holds, mining, trained

UPLOAD = Effort("upload", (100, 10), 30.0, "the upload stands at 10 of 100")


def test_what_moves_is_not_still_and_what_stands_is_after_its_limit() -> None:
    seen: Seen = look({}, [UPLOAD], 0.0)
    seen = look(seen, [UPLOAD], 29.0)
    assert not seen["upload"].due(29.0)
    assert seen["upload"].due(30.0)
    assert seen["upload"].text(30.0) == "no progress for 30 s: the upload stands at 10 of 100"
    seen = look(seen, [replace(UPLOAD, mark=(100, 11))], 30.0)
    assert not seen["upload"].due(59.0)
    assert look(seen, [], 60.0) == {}, "what is over is not still"


def test_a_first_step_is_waited_for_longer_and_a_slow_machine_has_its_own_time() -> None:
    assert step_limit_s(None) == FIRST_STEP_S
    assert step_limit_s(0.01) == STILL_S
    assert step_limit_s(60.0) == STEPS_STILL * 60.0


def told(what: str):  # type: ignore[no-untyped-def]
    return lambda seen: any("no progress" in beat.note and what in beat.note for beat in seen.beats)


def test_an_upload_that_stands_is_told_and_its_end_too(
    leader: Leader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("common.timeouts.STILL_S", 0.2)
    monkeypatch.setattr("common.timeouts.WATCH_LOOK_S", 0.02)
    leader.open_round()
    with mining(leader, tmp_path):
        leader.wait_until(trained())  # type: ignore[arg-type]
        leader.let_uploads.clear()
        leader.order = "submit"
        leader.wait_until(told("the upload stands at"))
        leader.let_uploads.set()
        leader.wait_until(lambda seen: bool(seen.completed))
        leader.wait_until(lambda seen: "no progress" not in seen.beats[-1].note)


def test_who_joins_a_stalled_run_fetches_nothing_says_why_and_begins_once_it_is_over(
    leader: Leader, tmp_path: Path
) -> None:
    leader.stall = "the storage does not answer"
    leader.open_round()
    with mining(leader, tmp_path):
        leader.wait_until(
            lambda seen: any("waiting to begin, since the run stands still" in b.note for b in seen.beats)
        )
        assert not (tmp_path / "cache" / "datasets").exists(), "nothing is fetched for a run that stands still"
        leader.stall = ""
        leader.wait_until(trained())  # type: ignore[arg-type]
        leader.wait_until(holds(leader, 0))  # type: ignore[arg-type]


def test_who_has_worked_in_a_run_goes_back_with_it_while_it_is_paused(leader: Leader, tmp_path: Path) -> None:
    leader.open_round()
    with mining(leader, tmp_path):
        hand_in(leader)
        leader.commit()
        leader.wait_until(holds(leader, 1))  # type: ignore[arg-type]
        leader.stall = "it is paused"
        leader.world.roll_back(0)
        leader.wait_until(lambda seen: seen.beats[-1].revision == 0)
    assert leader.world.state.head == 0
