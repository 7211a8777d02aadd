"""A miner that is told to stop hands in what it trained within its notice, keeps the rest, and leaves."""

from __future__ import annotations

from pathlib import Path

from common.wire import Phase
from tests.miner.leader import Leader, Seen
from tests.miner.mining import hand_in, holds, ledger_of, mining, trained


def last_beat(seen: Seen):  # type: ignore[no-untyped-def]
    return max(seen.beats, key=lambda beat: beat.seq)


def test_what_was_trained_is_handed_in_before_it_leaves(leader: Leader, tmp_path: Path) -> None:
    leader.open_round()
    with mining(leader, tmp_path) as miner:
        leader.wait_until(trained(tokens=320))  # type: ignore[arg-type]
        leader.let_uploads.clear()
        miner.ask_to_stop()
        leader.wait_until(lambda seen: bool(seen.manifests) and last_beat(seen).phase is Phase.DRAINING)
        draining = [beat for beat in leader.seen.beats if beat.phase is Phase.DRAINING]
        assert all(beat.upload is not None for beat in draining), "the leader is to wait for it"
        assert leader.seen.manifests[-1].final
        leader.let_uploads.set()
        miner.join()
    last = last_beat(leader.seen)
    assert leader.seen.completed == [leader.seen.manifests[-1].delta.sha256]
    assert (last.phase, last.upload) == (Phase.DRAINING, None), "the last heartbeat says that it goes"
    assert last.round_tokens == leader.seen.manifests[-1].tokens >= 320


def test_a_miner_without_work_leaves_at_once(leader: Leader, tmp_path: Path) -> None:
    with mining(leader, tmp_path) as miner:
        leader.wait_until(lambda seen: any("no round is open" in beat.note for beat in seen.beats))
        miner.stop()
    assert not leader.seen.manifests
    assert miner.error is None


def test_work_that_no_round_takes_is_carried_to_the_next_start(leader: Leader, tmp_path: Path) -> None:
    leader.open_round()
    with mining(leader, tmp_path) as miner:
        hand_in(leader)
        sent = leader.seen.manifests[-1]
        leader.freeze(*leader.last())
        leader.wait_until(lambda seen: seen.beats[-1].ahead_tokens > 0)
        miner.stop()
    assert len(leader.seen.manifests) == 1, "a frozen round takes nothing more"
    kept = ledger_of(leader, tmp_path)
    assert kept.work is not None
    assert kept.work.tokens > sent.tokens
    assert kept.optimizer is not None
    assert kept.optimizer.steps == kept.work.steps
    leader.world.commit(leader.world.state.open_round.plan)  # type: ignore[union-attr, arg-type]
    leader.open_round()
    with mining(leader, tmp_path) as miner:
        leader.wait_until(holds(leader, 1))  # type: ignore[arg-type]
        leader.wait_until(trained(1, kept.work.tokens - sent.tokens))  # type: ignore[arg-type]
        hand_in(leader)
    second = leader.seen.manifests[-1]
    assert second.samples[0].round == 0
    assert second.samples[0].start == sent.samples[-1].count, "only what the plan has not merged"


def test_an_upload_that_does_not_end_does_not_outlast_the_notice(leader: Leader, tmp_path: Path) -> None:
    leader.open_round()
    with mining(leader, tmp_path, notice_s=3.0) as miner:
        leader.wait_until(trained())  # type: ignore[arg-type]
        leader.let_uploads.clear()
        miner.stop()
    leader.let_uploads.set()
    assert miner.error is None
    assert len(ledger_of(leader, tmp_path).live) == 1, "the next start sends it"


def test_a_second_signal_waits_for_nothing(leader: Leader, tmp_path: Path) -> None:
    leader.open_round()
    with mining(leader, tmp_path, notice_s=3000.0) as miner:
        leader.wait_until(trained())  # type: ignore[arg-type]
        leader.let_uploads.clear()
        miner.ask_to_stop()
        leader.wait_until(lambda seen: bool(seen.manifests))
        miner.stop()
    leader.let_uploads.set()
    assert len(ledger_of(leader, tmp_path).live) == 1
