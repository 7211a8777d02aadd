"""A miner's process against a whole small run: rounds, and what it does with whom it can't trust."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from common.codec.container import decode
from common.codec.params import delta_params
from common.errors import SetupError
from common.units import Hotkey
from common.wire import ErrorReply, Phase
from tests.miner.leader import MINER, NETUID, Leader
from tests.miner.mining import Miner, delivered, hand_in, holds, ledger_of, mining, settles, trained
from tests.support.httpserver import Reply, ScriptedServer

CURABLE = ("checksum_mismatch", "not_uploaded", "wrong_size")
"""What a leader may find that sending once more cures."""


def test_rounds_are_trained_handed_in_and_applied(leader: Leader, tmp_path: Path) -> None:
    leader.open_round()
    with mining(leader, tmp_path):
        for revision in (1, 2, 3):
            hand_in(leader)
            leader.commit()
            leader.open_round()
            leader.wait_until(holds(leader, revision))  # type: ignore[arg-type]
    assert [r.round for r in leader.world.state.revisions.values() if r.round is not None] == [0, 1, 2]


def test_training_goes_on_through_the_merge_and_its_work_comes_with_the_next_round(
    leader: Leader, tmp_path: Path
) -> None:
    leader.open_round()
    with mining(leader, tmp_path):
        hand_in(leader)
        first = leader.seen.manifests[-1]
        leader.forget()
        leader.wait_until(lambda seen: any(beat.ahead_tokens > 0 for beat in seen.beats))
        assert leader.seen.beats[-1].round_tokens == first.tokens
        leader.commit()
        leader.open_round()
        leader.wait_until(holds(leader, 1))  # type: ignore[arg-type]
        leader.wait_until(trained(1))  # type: ignore[arg-type]  # what it had trained ahead is told as this round's
        ahead = max(beat.round_tokens for beat in leader.seen.beats if beat.round == 1)
        leader.wait_until(trained(1, ahead + 3 * first.tokens // first.steps))  # type: ignore[arg-type]
        hand_in(leader)
        second = leader.seen.manifests[-1]
    assert [part.round for part in first.samples] == [0]
    assert [part.round for part in second.samples] == [0, 1], "what was trained ahead, then the new round's stream"
    assert second.samples[0].start == first.samples[0].count, "no sample twice"
    assert second.tokens == second.sample_count * leader.spec.data.seq_len


def test_what_was_merged_leaves_the_residual_and_the_rest_stays(leader: Leader, tmp_path: Path) -> None:
    leader.open_round()
    with mining(leader, tmp_path) as miner:
        hand_in(leader)
        sent = ledger_of(leader, tmp_path).live[-1]
        leader.commit()
        settles(leader, tmp_path, 1)
        miner.stop()
    after = ledger_of(leader, tmp_path)
    said = decode(sent.sent.delta, expect=delta_params(leader.spec.codec, 0), count=len(sent.work.moved))
    assert np.array_equal(after.account.residual, sent.work.moved - said)
    assert (after.settled, after.live) == (1, ())


@pytest.mark.parametrize("decision", ["rejected", "too_late"])
def test_what_was_not_merged_stays_in_the_residual(leader: Leader, tmp_path: Path, decision: str) -> None:
    leader.open_round()
    with mining(leader, tmp_path) as miner:
        hand_in(leader)
        sent = ledger_of(leader, tmp_path).live[-1]
        leader.commit("rejected", code="" if decision == "rejected" else decision)
        settles(leader, tmp_path, 1)
        miner.stop()
    assert np.array_equal(ledger_of(leader, tmp_path).account.residual, sent.work.moved)


def test_after_an_aborted_round_the_work_goes_on_from_the_same_base(leader: Leader, tmp_path: Path) -> None:
    leader.open_round()
    with mining(leader, tmp_path):
        hand_in(leader)
        first = leader.seen.manifests[-1]
        leader.abort()
        leader.open_round()
        hand_in(leader)
        second = leader.seen.manifests[-1]
        leader.commit()
        leader.wait_until(holds(leader, 1))  # type: ignore[arg-type]
    assert (first.base_revision, second.base_revision) == (0, 0)
    assert second.samples[0].start == 0
    assert second.samples[0].count >= first.samples[0].count, "the second submission holds all of the first"
    assert [part.round for part in second.samples] == [0, 1]


def test_heartbeats_go_on_during_training_and_upload(leader: Leader, tmp_path: Path) -> None:
    leader.open_round()
    with mining(leader, tmp_path):
        leader.wait_until(lambda seen: sum(beat.phase is Phase.TRAINING for beat in seen.beats) >= 3)
        leader.let_uploads.clear()
        leader.order = "submit"
        leader.wait_until(lambda seen: sum(beat.upload is not None for beat in seen.beats) >= 3)
        during = [beat for beat in leader.seen.beats if beat.upload is not None]
        assert {beat.phase for beat in during} == {Phase.TRAINING}, "the upload does not stop the training"
        assert not leader.seen.uploads
        leader.let_uploads.set()
        leader.wait_until(delivered)
        numbers = [beat.seq for beat in leader.seen.beats]
        assert numbers == sorted(set(numbers))


def test_without_overlap_nothing_is_trained_after_the_final_submission(tmp_path: Path) -> None:
    with Leader(tmp_path, overlap=False) as leader:
        leader.open_round()
        with mining(leader, tmp_path):
            hand_in(leader)
            leader.forget()
            leader.wait_until(lambda seen: len(seen.beats) >= 5)
            assert Phase.TRAINING not in {beat.phase for beat in leader.seen.beats}
            assert {beat.ahead_tokens for beat in leader.seen.beats} == {0}
            leader.commit()
            leader.open_round()
            leader.wait_until(holds(leader, 1))  # type: ignore[arg-type]
            hand_in(leader)
        assert [part.round for part in leader.seen.manifests[-1].samples] == [1]


def test_a_refused_submission_does_not_end_the_miner(leader: Leader, tmp_path: Path) -> None:
    leader.open_round()
    leader.refuse["/v1/submissions"] = ErrorReply(code="wrong_base", message="another base")
    with mining(leader, tmp_path):
        leader.wait_until(trained())  # type: ignore[arg-type]
        leader.order = "submit"
        leader.wait_until(lambda seen: "wrong_base" in seen.beats[-1].note)
        leader.refuse.clear()
        leader.commit()
        leader.open_round()
        leader.wait_until(holds(leader, 1))  # type: ignore[arg-type]
        hand_in(leader)
    assert leader.seen.manifests[-1].samples[0].start == 0, "no plan named it, so all of the work came along"


def test_a_delta_that_arrived_broken_is_put_again(leader: Leader, tmp_path: Path) -> None:
    leader.open_round()
    leader.put_answers = [413]  # not the announced size
    leader.findings = list(CURABLE)
    with mining(leader, tmp_path):
        hand_in(leader)
    assert len(leader.seen.completed) == len(CURABLE) + 1
    assert len(leader.seen.uploads) == len(CURABLE) + 1
    assert len({manifest.delta.sha256 for manifest in leader.seen.manifests}) == 1


@pytest.mark.parametrize("order", ["train", "submit", "wait"])
def test_a_joiner_begins_at_once_in_whatever_phase(leader: Leader, tmp_path: Path, order: str) -> None:
    leader.open_round()
    leader.order = order
    if order == "wait":
        leader.freeze()
    with mining(leader, tmp_path):
        leader.wait_until(lambda seen: any(beat.counters.tokens > 0 for beat in seen.beats))
        if order == "wait":
            assert not any(beat.round_tokens for beat in leader.seen.beats), "too late for this round"
            leader.world.commit(leader.world.state.open_round.plan)  # type: ignore[union-attr, arg-type]
            leader.open_round()
        hand_in(leader)


def test_a_hotkey_without_a_seat_is_told_what_to_do(leader: Leader, tmp_path: Path) -> None:
    subnet = leader.chain.subnets[NETUID]
    subnet.neurons = [neuron for neuron in subnet.neurons if neuron.hotkey != Hotkey(MINER.hotkey)]
    miner = Miner(leader, tmp_path).start()
    miner.join()
    assert isinstance(miner.error, SetupError)
    assert "register it first" in str(miner.error)


def test_a_storage_at_a_private_address_needs_permission(leader: Leader, tmp_path: Path) -> None:
    miner = Miner(leader, tmp_path, allow_private=False).start()
    miner.join()
    assert isinstance(miner.error, SetupError)
    assert "127.0.0.1, no public address; --allow-private permits it" in str(miner.error)


def test_a_run_of_several_shards_is_refused_at_the_start(tmp_path: Path) -> None:
    with Leader(tmp_path, num_shards=2) as leader:
        miner = Miner(leader, tmp_path).start()
        miner.join()
    assert isinstance(miner.error, SetupError)
    assert "split into 2 shards" in str(miner.error)


def test_a_leader_can_not_send_a_delta_elsewhere(leader: Leader, tmp_path: Path) -> None:
    leader.open_round()
    with ScriptedServer(lambda request: Reply(200)) as elsewhere:
        leader.upload_base = elsewhere.url()
        with mining(leader, tmp_path):
            leader.wait_until(trained())  # type: ignore[arg-type]
            leader.order = "submit"
            leader.wait_until(lambda seen: "url_refused" in seen.beats[-1].note)
            leader.abort()
            leader.open_round()
            leader.upload_base = ""
            hand_in(leader)
        assert elsewhere.requests == []


def test_two_miners_in_one_folder_are_refused(leader: Leader, tmp_path: Path) -> None:
    leader.open_round()
    with mining(leader, tmp_path):
        leader.wait_until(trained())  # type: ignore[arg-type]
        other = Miner(leader, tmp_path).start()
        other.join()
    assert isinstance(other.error, SetupError)
    assert "another miner" in str(other.error)
