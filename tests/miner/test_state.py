"""Disk state: whole or absent, settled exactly once, and another run's is not mistaken for one's own."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from common.errors import SetupError
from common.merge.feedback import Feedback
from common.spec import RunSpec
from common.units import Hotkey, RoundId
from miner.adamw import OptimizerState
from miner.delta import Submission, build
from miner.follow import LogView
from miner.ledger import Ledger, fresh_memory
from miner.state import NO_ROUND, Memory, StateFolder, lock_folder
from tests.miner.test_delta import BASE, COUNT, SIGNER, SPEC, moved, work
from tests.runlog.support import SPEC as LOG_SPEC
from tests.runlog.support import started


def folder(path: Path, spec: RunSpec = SPEC, hotkey: Hotkey = SIGNER.hotkey) -> StateFolder:
    return StateFolder(path, spec, hotkey, COUNT)


def memory(settled: int = 2) -> Memory:
    return Memory(Feedback(moved(7)), OptimizerState(moved(8), moved(9) ** 2, 17), settled)


def submission() -> Submission:
    return build(SPEC, Feedback(moved(7)), work(moved(1), BASE), BASE, SIGNER)


def same_memory(a: Memory, b: Memory) -> bool:
    return (
        np.array_equal(a.feedback.residual, b.feedback.residual)
        and np.array_equal(a.optimizer.first, b.optimizer.first)
        and np.array_equal(a.optimizer.second, b.optimizer.second)
        and (a.optimizer.steps, a.settled_round) == (b.optimizer.steps, b.settled_round)
    )


def test_everything_comes_back_as_it_was(tmp_path: Path) -> None:
    sent, done = submission(), work(moved(1), BASE)
    folder(tmp_path).save_memory(memory())
    folder(tmp_path).save_pending(sent)
    folder(tmp_path).save_progress(done)
    again = folder(tmp_path)
    loaded, pending, progress = again.load_memory(), again.load_pending(), again.load_progress()
    assert loaded is not None
    assert pending is not None
    assert progress is not None
    assert same_memory(loaded, memory())
    assert (pending.manifest, pending.delta, pending.cap_norm) == (sent.manifest, sent.delta, sent.cap_norm)
    assert np.array_equal(pending.target, sent.target)
    assert replace(progress, local=done.local) == done
    assert np.array_equal(progress.local, done.local)


def test_an_empty_folder_is_a_fresh_start(tmp_path: Path) -> None:
    ledger = Ledger.open(SPEC, folder(tmp_path), COUNT)
    assert (ledger.pending, ledger.carried, ledger.memory.settled_round) == (None, None, NO_ROUND)


@pytest.mark.parametrize("name", ["memory", "pending", "progress"])
@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "garbage"])
def test_a_damaged_file_is_set_aside(tmp_path: Path, name: str, damage: str) -> None:
    state = folder(tmp_path)
    state.save_memory(memory())
    state.save_pending(submission())
    state.save_progress(work(moved(1), BASE))
    path = tmp_path / f"{name}.safetensors"
    data = path.read_bytes()
    changed = {"cut": data[:-5], "flip": b"\xff" + data[1:], "empty": b"", "garbage": bytes(range(256)) * 40}
    path.write_bytes(changed[damage])
    assert getattr(folder(tmp_path), f"load_{name}")() is None
    assert path.with_suffix(".bad").exists()
    Ledger.open(SPEC, folder(tmp_path), COUNT)


@pytest.mark.parametrize("other", [{"spec": replace(SPEC, seed=1)}, {"hotkey": Hotkey("5" + "F" * 47)}])
def test_state_of_another_run_or_hotkey_is_not_taken(tmp_path: Path, other: dict[str, object]) -> None:
    folder(tmp_path).save_memory(memory())
    assert folder(tmp_path, **other).load_memory() is None  # type: ignore[arg-type]


def test_a_memory_that_is_not_finite_is_not_taken(tmp_path: Path) -> None:
    bad = moved(7)
    bad[3] = np.nan
    folder(tmp_path).save_memory(replace(memory(), feedback=Feedback(bad)))
    assert folder(tmp_path).load_memory() is None


def settle(ledger: Ledger, round_id: int) -> None:
    view = LogView(started(LOG_SPEC))
    asyncio.run(ledger.settle(view, RoundId(round_id), None, None))


def test_a_kill_between_memory_and_clean_up_does_not_settle_twice(tmp_path: Path) -> None:
    """The memory of round 3 is on disk, its pending is still there: it must count for nothing."""
    state = folder(tmp_path)
    state.save_pending(submission())
    ledger = Ledger.open(SPEC, state, COUNT)
    settle(ledger, 3)
    once = ledger.memory.feedback.residual
    state.save_pending(submission())  # as if the kill had come before it was removed
    state.save_progress(work(moved(1), BASE))
    again = Ledger.open(SPEC, folder(tmp_path), COUNT)
    assert (again.pending, again.carried) == (None, None)
    assert np.array_equal(again.memory.feedback.residual, once)


def test_a_kill_before_the_memory_is_written_settles_after_the_restart(tmp_path: Path) -> None:
    state = folder(tmp_path)
    state.save_memory(memory(settled=2))
    state.save_pending(submission())
    ledger = Ledger.open(SPEC, folder(tmp_path), COUNT)
    assert ledger.pending is not None
    settle(ledger, 3)
    assert np.array_equal(ledger.memory.feedback.residual, submission().target)
    assert not (tmp_path / "pending.safetensors").exists()


def test_work_that_was_handed_in_is_not_carried_too(tmp_path: Path) -> None:
    state = folder(tmp_path)
    state.save_progress(work(moved(1), BASE))
    state.save_pending(submission())  # the kill came before the progress was removed
    ledger = Ledger.open(SPEC, folder(tmp_path), COUNT)
    assert ledger.pending is not None
    assert ledger.carried is None


def test_one_process_holds_a_folder(tmp_path: Path) -> None:
    with lock_folder(tmp_path), pytest.raises(SetupError, match="another miner"):
        lock_folder(tmp_path)
    lock_folder(tmp_path).close()


def test_a_fresh_memory_is_zero() -> None:
    made = fresh_memory(5)
    assert not made.feedback.residual.any()
    assert not made.optimizer.first.any()
