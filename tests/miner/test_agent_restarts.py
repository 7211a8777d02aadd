"""A miner through kills, stops and restarts of itself, its leader and the storage: no work is lost or sent twice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from common.codec.container import decode
from common.codec.params import delta_params
from common.merge import feedback as fb
from common.wire import ErrorReply, Phase
from tests.miner.leader import Leader
from tests.miner.mining import delivered, hand_in, holds, ledger_of, mining, trained


def test_a_kill_after_handing_in_settles_by_the_log(leader: Leader, tmp_path: Path) -> None:
    leader.open_round()
    with mining(leader, tmp_path) as miner:
        hand_in(leader)
        miner.kill()
    pending = ledger_of(leader, tmp_path).pending
    leader.commit()
    leader.open_round()
    with mining(leader, tmp_path) as miner:
        leader.wait_until(trained(1))  # type: ignore[arg-type]
        miner.kill()
    assert pending is not None
    sent = decode(pending.delta, expect=delta_params(leader.spec.codec, 0), count=len(pending.target))
    assert np.array_equal(ledger_of(leader, tmp_path).memory.feedback.residual, pending.target - sent)


def test_a_kill_before_the_upload_sends_the_same_delta_after_the_restart(leader: Leader, tmp_path: Path) -> None:
    leader.open_round()
    leader.refuse["/v1/submissions"] = ErrorReply(code="not_leader", message="not now")
    with mining(leader, tmp_path) as miner:
        leader.wait_until(trained())  # type: ignore[arg-type]
        leader.order = "submit"
        leader.wait_until(lambda seen: seen.beats[-1].phase is Phase.UPLOADING)
        miner.kill()
    pending = ledger_of(leader, tmp_path).pending
    assert pending is not None
    leader.refuse.clear()
    with mining(leader, tmp_path):
        leader.wait_until(delivered)
    assert leader.seen.completed == [pending.manifest.delta.sha256]


def test_work_of_a_stopped_miner_goes_on_where_it_was(leader: Leader, tmp_path: Path) -> None:
    leader.open_round()
    with mining(leader, tmp_path) as miner:
        leader.wait_until(trained(tokens=320))  # type: ignore[arg-type]
        miner.stop()
    carried = ledger_of(leader, tmp_path).carried
    assert carried is not None
    with mining(leader, tmp_path):
        leader.wait_until(trained())  # type: ignore[arg-type]
        hand_in(leader)
    manifest = leader.seen.manifests[-1].manifest["body"]
    assert manifest["tokens"] >= carried.tokens >= 320
    assert manifest["sample_start"] == 0


def test_work_of_a_stopped_miner_is_not_lost_when_its_round_is_over(leader: Leader, tmp_path: Path) -> None:
    leader.open_round()
    with mining(leader, tmp_path) as miner:
        leader.wait_until(trained())  # type: ignore[arg-type]
        miner.stop()
    carried = ledger_of(leader, tmp_path).carried
    leader.commit()
    with mining(leader, tmp_path) as miner:
        leader.wait_until(holds(leader, 1))  # type: ignore[arg-type]
        miner.stop()
    after = ledger_of(leader, tmp_path)
    assert carried is not None
    assert np.array_equal(after.memory.feedback.residual, carried.local)
    assert fb.norm(after.memory.feedback.residual) > 0


def test_a_new_leading_process_hears_of_the_delta_again(leader: Leader, tmp_path: Path) -> None:
    leader.open_round()
    with mining(leader, tmp_path):
        hand_in(leader)
        first = leader.seen.manifests[-1]
        leader.forget()
        leader.restart()
        leader.wait_until(delivered)
        assert leader.seen.manifests[-1] == first
        leader.commit()
        leader.wait_until(holds(leader, 1))  # type: ignore[arg-type]


def test_training_and_work_survive_leader_and_storage(leader: Leader, tmp_path: Path) -> None:
    leader.open_round()
    with mining(leader, tmp_path):
        leader.wait_until(trained())  # type: ignore[arg-type]
        leader.down = leader.store_down = True
        before = leader.seen.beats[-1].counters.tokens
        leader.forget()
        leader.wait_until(lambda seen: seen.unanswered >= 2)
        leader.down = False
        leader.wait_until(lambda seen: bool(seen.beats) and seen.beats[-1].counters.tokens > before)
        leader.order = "submit"
        leader.wait_until(lambda seen: any(beat.phase is Phase.UPLOADING for beat in seen.beats))
        leader.store_down = False
        leader.wait_until(delivered)
        leader.commit()
        leader.wait_until(holds(leader, 1))  # type: ignore[arg-type]


def test_the_last_heartbeat_of_a_stopped_miner_says_that_it_goes(leader: Leader, tmp_path: Path) -> None:
    leader.open_round()
    with mining(leader, tmp_path) as miner:
        leader.wait_until(trained())  # type: ignore[arg-type]
        miner.stop()
    carried, last = ledger_of(leader, tmp_path).carried, max(leader.seen.beats, key=lambda beat: beat.seq)
    assert carried is not None
    assert (last.phase, last.round_tokens) == (Phase.DRAINING, carried.tokens)


def test_a_delivery_that_breaks_is_not_swallowed(
    leader: Leader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> str:
        raise RuntimeError("nobody foresaw this")

    monkeypatch.setattr("miner.uplink.upload", broken)
    leader.open_round()
    with mining(leader, tmp_path) as miner:
        leader.wait_until(trained())  # type: ignore[arg-type]
        leader.order = "submit"
        miner.join()
    assert isinstance(miner.error, RuntimeError)
    assert ledger_of(leader, tmp_path).pending is not None, "the next start sends it"
