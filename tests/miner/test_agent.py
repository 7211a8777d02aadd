"""A miner's process against a whole small run: rounds, restarts of everybody, and what it does when it is stopped."""

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
from tests.miner.mining import Miner, delivered, hand_in, holds, ledger_of, mining, trained
from tests.support.httpserver import Reply, ScriptedServer
from validator.intake import PASSING


def test_rounds_are_trained_handed_in_and_applied(leader: Leader, tmp_path: Path) -> None:
    leader.open_round()
    with mining(leader, tmp_path):
        for revision in (1, 2, 3):
            hand_in(leader)
            leader.commit()
            leader.open_round()
            leader.wait_until(holds(leader, revision))  # type: ignore[arg-type]
    assert [r.round for r in leader.world.state.revisions.values() if r.round is not None] == [0, 1, 2]


def test_what_was_merged_leaves_the_residual_and_the_rest_stays(leader: Leader, tmp_path: Path) -> None:
    leader.open_round()
    with mining(leader, tmp_path) as miner:
        hand_in(leader)
        pending = ledger_of(leader, tmp_path).pending
        leader.commit()
        leader.wait_until(holds(leader, 1))  # type: ignore[arg-type]
        miner.stop()
    after = ledger_of(leader, tmp_path)
    assert pending is not None
    sent = decode(pending.delta, expect=delta_params(leader.spec.codec, 0), count=len(pending.target))
    assert np.array_equal(after.memory.feedback.residual, pending.target - sent)
    assert (after.memory.settled_round, after.pending) == (0, None)


@pytest.mark.parametrize("how", ["abort", "reject"])
def test_what_was_not_merged_stays_in_the_residual(leader: Leader, tmp_path: Path, how: str) -> None:
    leader.open_round()
    with mining(leader, tmp_path) as miner:
        hand_in(leader)
        pending = ledger_of(leader, tmp_path).pending
        if how == "abort":
            leader.abort()
        else:
            leader.commit(accept=False)
        leader.forget()
        leader.wait_until(lambda seen: bool(seen.beats) and seen.beats[-1].round is None)
        miner.stop()
    assert pending is not None
    assert np.array_equal(ledger_of(leader, tmp_path).memory.feedback.residual, pending.target)


def test_heartbeats_go_on_during_training_and_upload(leader: Leader, tmp_path: Path) -> None:
    leader.open_round()
    with mining(leader, tmp_path):
        leader.wait_until(lambda seen: sum(beat.phase is Phase.TRAINING for beat in seen.beats) >= 3)
        leader.let_uploads.clear()
        leader.order = "submit"
        leader.wait_until(lambda seen: sum(beat.upload is not None for beat in seen.beats) >= 3)
        assert not leader.seen.uploads
        leader.let_uploads.set()
        leader.wait_until(delivered)
        numbers = [beat.seq for beat in leader.seen.beats]
        assert numbers == sorted(set(numbers))


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


def test_a_delta_that_arrived_broken_is_put_again(leader: Leader, tmp_path: Path) -> None:
    leader.open_round()
    leader.put_answers = [413]  # not the announced size
    leader.findings = sorted(PASSING)
    with mining(leader, tmp_path):
        hand_in(leader)
    assert len(leader.seen.completed) == len(PASSING) + 1
    assert len(leader.seen.uploads) == len(PASSING) + 1
    assert len({manifest.model_dump_json() for manifest in leader.seen.manifests}) == 1


def test_a_joiner_waits_while_a_round_closes(leader: Leader, tmp_path: Path) -> None:
    leader.open_round()
    leader.order = "wait"
    with mining(leader, tmp_path):
        leader.wait_until(lambda seen: any("joining the next one" in beat.note for beat in seen.beats))
        assert not leader.seen.manifests
        leader.commit()
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
