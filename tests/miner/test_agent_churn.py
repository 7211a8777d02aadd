"""A miner under the plans of an eventful run: drips, deferred and late submissions, adopted ones, plans made again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from common.codec.container import decode
from common.codec.params import delta_params
from common.model.layout import Vector
from miner.delta import Outstanding
from tests.miner.leader import Leader
from tests.miner.mining import beating, delivered, hand_in, holds, ledger_of, mining, settles, trained
from tests.miner.planning import member


def said(leader: Leader, one: Outstanding) -> Vector:
    params = delta_params(leader.spec.codec, one.sent.manifest.base_revision)
    return decode(one.sent.delta, expect=params, count=len(one.work.moved))


@pytest.fixture
def dripping(tmp_path: Path) -> Iterator[Leader]:
    """A leader of a run with a drip at every turn."""
    with Leader(tmp_path, drip_s=1e-3) as made:
        yield made


def defer_one(leader: Leader) -> None:
    """The miner's final submission is announced, its bytes do not come, and the plan defers it."""
    leader.wait_until(trained(leader.world.state.open_round.round))  # type: ignore[union-attr, arg-type]
    leader.let_uploads.clear()
    leader.forget()
    leader.order = "submit"
    leader.wait_until(lambda seen: bool(seen.manifests))
    leader.world.commit(leader.freeze(*leader.last("deferred")))
    leader.open_round()


def test_drips_are_sent_while_training_goes_on_and_each_holds_all_before_it(dripping: Leader, tmp_path: Path) -> None:
    dripping.open_round()
    with mining(dripping, tmp_path):
        dripping.wait_until(lambda seen: len(seen.completed) >= 3)
        hand_in(dripping)
    sent = [stored.manifest for stored in dripping.submissions.values()]
    assert [manifest.final for manifest in sent] == [False] * (len(sent) - 1) + [True]
    tokens = [manifest.tokens for manifest in sent]
    assert tokens == sorted(set(tokens))
    assert {manifest.samples[0].start for manifest in sent} == {0}


def test_only_what_a_plan_can_still_name_is_kept(dripping: Leader, tmp_path: Path) -> None:
    dripping.open_round()
    with mining(dripping, tmp_path) as miner:
        dripping.wait_until(lambda seen: len(seen.completed) >= 3)
        miner.kill()
    live = ledger_of(dripping, tmp_path).live
    assert 1 <= len(live) <= 3, "the newest that the leader confirmed, the one under way, and one just made"


def test_a_plan_that_names_an_earlier_drip_leaves_the_rest_in_the_training(dripping: Leader, tmp_path: Path) -> None:
    """As after a death: the drip is merged, and what was trained after it comes with the next submission."""
    dripping.open_round()
    with mining(dripping, tmp_path) as miner:
        dripping.wait_until(lambda seen: bool(seen.completed))
        dripping.let_uploads.clear()  # later drips don't arrive
        dripping.forget()
        dripping.wait_until(lambda seen: bool(seen.manifests))
        miner.kill()
        drip = next(s for s in reversed(dripping.submissions.values()) if s.manifest.delta.sha256 in dripping.complete)
        by_hash = {one.sent.manifest.delta.sha256: one for one in ledger_of(dripping, tmp_path).live}
        later = ledger_of(dripping, tmp_path).work
        dripping.world.commit(dripping.freeze(member(drip)))
    assert later is not None
    mine = by_hash[drip.manifest.delta.sha256]
    dripping.order = "train"
    with mining(dripping, tmp_path) as miner:
        dripping.wait_until(holds(dripping, 1))  # type: ignore[arg-type]
        dripping.forget()
        dripping.wait_until(beating)
        miner.kill()
    after = ledger_of(dripping, tmp_path)
    dripping.let_uploads.set()
    assert np.array_equal(after.account.residual, mine.work.moved - said(dripping, mine))
    assert after.work is not None
    assert after.work.trace == later.trace[mine.work.steps :]
    assert np.array_equal(after.work.moved, later.moved - mine.work.moved)


def test_a_deferred_submission_goes_on_uploading_and_the_next_plan_takes_it(leader: Leader, tmp_path: Path) -> None:
    leader.open_round()
    with mining(leader, tmp_path) as miner:
        defer_one(leader)
        leader.wait_until(holds(leader, 1))  # type: ignore[arg-type]
        first = leader.seen.manifests[0]
        leader.let_uploads.set()
        leader.wait_until(lambda seen: first.delta.sha256 in seen.completed)
        leader.wait_until(lambda seen: seen.quiet_beats >= 2)
        hand_in(leader)
        second = leader.seen.manifests[-1]
        leader.commit()
        settles(leader, tmp_path, 2)
        miner.stop()
    assert second.round == 1
    assert second.samples[0].start == first.samples[-1].count, "what is pending is in no other delta"
    assert leader.world.state.deferred == ()
    assert ledger_of(leader, tmp_path).pending is None


@pytest.mark.parametrize("lost", [False, True])
def test_a_pending_submission_that_is_not_taken_comes_back(leader: Leader, tmp_path: Path, lost: bool) -> None:
    leader.open_round()
    with mining(leader, tmp_path) as miner:
        defer_one(leader)
        settles(leader, tmp_path, 1)
        miner.kill()
        held = ledger_of(leader, tmp_path)
        leader.world.commit(leader.freeze(*leader.late("rejected", "too_late" if lost else "norm_too_large")))
        leader.order = "train"
        leader.open_round()
    assert held.account.pending is not None
    assert not held.account.residual.any(), "its mass is pending, not in the residual"
    with mining(leader, tmp_path) as miner:
        settles(leader, tmp_path, 2)
        miner.kill()
    leader.let_uploads.set()
    after = ledger_of(leader, tmp_path)
    assert after.account.pending is None
    assert np.array_equal(after.account.residual, held.account.pending.target)


def test_a_restart_goes_on_with_the_upload_of_what_is_pending(leader: Leader, tmp_path: Path) -> None:
    leader.open_round()
    with mining(leader, tmp_path) as miner:
        defer_one(leader)
        settles(leader, tmp_path, 1)
        miner.kill()
    leader.let_uploads.set()
    pending = ledger_of(leader, tmp_path).pending
    assert pending is not None
    with mining(leader, tmp_path):
        leader.wait_until(lambda seen: pending.manifest.delta.sha256 in seen.completed)


def test_a_submission_of_an_aborted_round_may_be_adopted(leader: Leader, tmp_path: Path) -> None:
    leader.open_round()
    with mining(leader, tmp_path) as miner:
        hand_in(leader)
        first = leader.of_round()[-1]
        leader.abort()
        leader.open_round()
        leader.wait_until(trained(1, first.manifest.tokens + 1))  # type: ignore[arg-type]
        leader.world.commit(leader.freeze(member(first)))
        leader.open_round()
        leader.wait_until(holds(leader, 1))  # type: ignore[arg-type]
        hand_in(leader)
        miner.kill()
    second = leader.seen.manifests[-1]
    assert second.samples[0].start == first.manifest.samples[-1].count, "what was adopted is not handed in again"
    assert first.manifest.round == second.samples[0].round == 0


def test_a_plan_that_is_made_again_takes_the_place_of_the_first(leader: Leader, tmp_path: Path) -> None:
    leader.open_round()
    with mining(leader, tmp_path) as miner:
        hand_in(leader)
        sent = ledger_of(leader, tmp_path).live[-1]
        mine = leader.of_round()[-1]
        leader.freeze(member(mine))
        again = leader.freeze(member(mine, "rejected", "guard_suspect"), attempt=1)
        leader.world.commit(again)
        settles(leader, tmp_path, 1)
        miner.stop()
    assert np.array_equal(ledger_of(leader, tmp_path).account.residual, sent.work.moved)


def test_a_plan_that_names_what_was_never_sent_counts_for_nothing(leader: Leader, tmp_path: Path) -> None:
    leader.open_round()
    with mining(leader, tmp_path) as miner:
        hand_in(leader)
        tokens = leader.seen.manifests[-1].tokens
        leader.world.commit(leader.freeze(leader.invent(leader.of_round()[-1])))
        leader.open_round()
        leader.wait_until(holds(leader, 1))  # type: ignore[arg-type]
        leader.wait_until(trained(1, tokens))  # type: ignore[arg-type]
        miner.kill()
    after = ledger_of(leader, tmp_path)
    assert not after.account.residual.any()
    assert after.work is not None
    assert after.work.tokens >= tokens, "all of the work stays the miner's"


def test_a_final_submission_takes_the_place_of_a_drip_under_way(dripping: Leader, tmp_path: Path) -> None:
    dripping.open_round()
    with mining(dripping, tmp_path):
        dripping.wait_until(lambda seen: len(seen.completed) >= 1)
        dripping.let_uploads.clear()
        dripping.forget()
        dripping.wait_until(lambda seen: bool(seen.manifests) and seen.beats[-1:] != [])
        dripping.order = "submit"
        dripping.wait_until(lambda seen: seen.manifests[-1].final)
        dripping.let_uploads.set()
        dripping.wait_until(lambda seen: delivered(seen) and seen.completed[-1] == seen.manifests[-1].delta.sha256)
