"""A miner through kills, stops and restarts of itself, its leader and the storage: no work is lost or sent twice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from common.codec.container import decode
from common.codec.params import delta_params
from common.wire import ErrorReply, Phase
from tests.miner.leader import Leader
from tests.miner.mining import delivered, hand_in, holds, ledger_of, mining, settles, trained


def test_a_kill_after_handing_in_settles_by_the_log(leader: Leader, tmp_path: Path) -> None:
    leader.open_round()
    with mining(leader, tmp_path) as miner:
        hand_in(leader)
        miner.kill()
    sent = ledger_of(leader, tmp_path).live[-1]
    leader.commit()
    leader.open_round()
    with mining(leader, tmp_path) as miner:
        leader.wait_until(trained(1))  # type: ignore[arg-type]
        miner.kill()
    after = ledger_of(leader, tmp_path)
    said = decode(sent.sent.delta, expect=delta_params(leader.spec.codec, 0), count=len(sent.work.moved))
    assert np.array_equal(after.account.residual, sent.work.moved - said)
    assert after.work is None, "what it held is merged"


def test_a_kill_before_the_upload_sends_the_same_delta_after_the_restart(leader: Leader, tmp_path: Path) -> None:
    leader.open_round()
    leader.refuse["/v1/submissions"] = ErrorReply(code="not_leader", message="not now")
    with mining(leader, tmp_path) as miner:
        leader.wait_until(trained())  # type: ignore[arg-type]
        leader.order = "submit"
        leader.wait_until(lambda seen: "sending" in seen.beats[-1].note or seen.beats[-1].ahead_tokens > 0)
        miner.kill()
    sent = ledger_of(leader, tmp_path).live
    assert len(sent) == 1
    leader.refuse.clear()
    with mining(leader, tmp_path):
        leader.wait_until(delivered)
    assert leader.seen.completed == [sent[0].sent.manifest.delta.sha256]


def test_after_a_kill_training_goes_on_from_the_last_submission(leader: Leader, tmp_path: Path) -> None:
    """x = base + moved, with its trace: the next submission holds all of the one before, and its samples go on."""
    leader.open_round()
    with mining(leader, tmp_path) as miner:
        hand_in(leader)
        miner.kill()
    held = ledger_of(leader, tmp_path).work
    assert held is not None
    leader.abort()
    leader.open_round()
    with mining(leader, tmp_path):
        leader.wait_until(trained(1, held.tokens))  # type: ignore[arg-type]
        hand_in(leader)
    manifest = leader.seen.manifests[-1]
    assert manifest.samples[0].round == 0
    assert manifest.samples[0].count == sum(step.samples for step in held.trace)


def test_work_that_no_plan_named_survives_kills_after_the_commit(leader: Leader, tmp_path: Path) -> None:
    """The submission's base is gone, its work is not: the disk carries it onto the next revision."""
    leader.open_round()
    leader.refuse["/v1/submissions"] = ErrorReply(code="wrong_base", message="the test does not want it")
    with mining(leader, tmp_path) as miner:
        leader.wait_until(trained())  # type: ignore[arg-type]
        leader.order = "submit"
        leader.wait_until(lambda seen: "wrong_base" in seen.beats[-1].note)
        miner.kill()
    held = ledger_of(leader, tmp_path).work
    leader.world.commit(leader.freeze())
    for _ in range(2):
        with mining(leader, tmp_path) as miner:
            settles(leader, tmp_path, 1)
            miner.kill()
        after = ledger_of(leader, tmp_path)
        assert held is not None
        assert after.settled == 1
        assert after.work is not None
        assert np.array_equal(after.work.moved, held.moved)
        assert after.work.trace == held.trace


def test_a_miner_that_slept_through_several_revisions_settles_through_each_plan(leader: Leader, tmp_path: Path) -> None:
    leader.open_round()
    with mining(leader, tmp_path) as miner:
        hand_in(leader)
        miner.kill()
    sent = ledger_of(leader, tmp_path).live[-1]
    leader.commit()
    for _ in range(2):
        leader.open_round()
        leader.world.commit(leader.freeze())
    with mining(leader, tmp_path) as miner:
        settles(leader, tmp_path, 3)
        miner.stop()
    after = ledger_of(leader, tmp_path)
    said = decode(sent.sent.delta, expect=delta_params(leader.spec.codec, 0), count=len(sent.work.moved))
    assert np.array_equal(after.account.residual, sent.work.moved - said)
    assert after.settled == 3


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
        leader.wait_until(lambda seen: bool(seen.manifests))
        leader.store_down = False
        leader.wait_until(delivered)
        leader.commit()
        leader.wait_until(holds(leader, 1))  # type: ignore[arg-type]


def test_while_the_revision_can_not_be_fetched_training_goes_on(leader: Leader, tmp_path: Path) -> None:
    leader.open_round()
    with mining(leader, tmp_path):
        hand_in(leader)
        leader.commit()
        leader.open_round()
        leader.lose_updates = True
        leader.forget()
        leader.wait_until(lambda seen: seen.fetches >= 2)
        before = leader.seen.beats[-1].counters.tokens
        leader.wait_until(lambda seen: seen.beats[-1].counters.tokens > before)
        assert leader.seen.beats[-1].phase is Phase.TRAINING
        assert leader.seen.beats[-1].round == 0, "its work is not yet the next round's"
        leader.lose_updates = False
        leader.wait_until(holds(leader, 1))  # type: ignore[arg-type]
        hand_in(leader)


def test_a_delivery_that_breaks_is_not_swallowed(
    leader: Leader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object, **__: object) -> str:
        raise RuntimeError("nobody foresaw this")

    monkeypatch.setattr("miner.uplink.Uplink.deliver", broken)
    leader.open_round()
    with mining(leader, tmp_path) as miner:
        leader.wait_until(trained())  # type: ignore[arg-type]
        leader.order = "submit"
        miner.join()
    assert isinstance(miner.error, RuntimeError)
    assert ledger_of(leader, tmp_path).live, "the next start sends it"
