"""What plans do to an account: at most one submission of a base is settled, and strange plans are alarms."""

from __future__ import annotations

import numpy as np
import pytest

from common.merge.account import Account, wanted
from common.merge.flows import norm
from common.runlog.entries import PlanMember
from common.units import Revision, Sha256
from miner.delta import decoded
from miner.settle import OwnPlan, Settlement, Standing, settle
from tests.miner.working import COUNT, SPEC, noise, outstanding, place, work

ACCOUNT = Account(noise(9))
DRIP = outstanding(work(noise(1), steps=2), ACCOUNT, final=False)
FINAL = outstanding(work(noise(1) + noise(2), steps=4), ACCOUNT)
ADOPTED = outstanding(work(noise(3), steps=1, round_id=2), ACCOUNT, round_id=2)
STANDING = Standing(ACCOUNT, (ADOPTED, DRIP, FINAL))
BETA = SPEC.codec.feedback


def plan(*members: PlanMember, revision: int = 2) -> OwnPlan:
    return OwnPlan(Revision(revision), Revision(revision - 1), members)


def one(*members: PlanMember) -> Settlement:
    return settle(SPEC, STANDING, [plan(*members)])


@pytest.mark.parametrize("mine", [DRIP, FINAL, ADOPTED])
def test_whichever_was_accepted_leaves_what_its_delta_left_out(mine) -> None:  # type: ignore[no-untyped-def]
    done = one(place(mine.sent))
    target = wanted(ACCOUNT, mine.work.moved, BETA)
    assert np.array_equal(done.standing.account.residual, target - decoded(SPEC, mine.sent, COUNT))
    assert done.mark is mine
    assert not done.alarms
    assert done.standing.live == ()


def test_what_is_accepted_goes_before_what_is_rejected_beside_it() -> None:
    done = one(place(ADOPTED.sent), place(FINAL.sent, "rejected", "not_uploaded"))
    assert done.mark is ADOPTED


def test_what_was_judged_goes_before_what_could_not_be() -> None:
    done = one(place(DRIP.sent, "rejected"), place(FINAL.sent, "rejected", "too_late"))
    assert done.mark is DRIP


def test_a_rejected_delta_is_kept_up_to_a_cap_and_one_that_was_not_there_whole() -> None:
    target = wanted(ACCOUNT, FINAL.work.moved, BETA)
    assert norm(one(place(FINAL.sent, "rejected")).standing.account.residual) <= FINAL.cap_norm * (1 + 1e-6)
    whole = one(place(FINAL.sent, "rejected", "not_uploaded"))
    assert np.array_equal(whole.standing.account.residual, target)
    assert whole.mark is FINAL


def test_nothing_named_changes_nothing() -> None:
    done = one()
    assert done.standing.account is ACCOUNT
    assert done.mark is None
    assert not done.reasons


def test_a_deferred_one_is_pending_until_the_next_plan() -> None:
    waiting = one(place(FINAL.sent, "deferred"))
    assert waiting.standing.pending is FINAL.sent
    assert not waiting.standing.account.residual.any()
    done = settle(SPEC, waiting.standing, [plan(place(FINAL.sent), revision=3)])
    target = wanted(ACCOUNT, FINAL.work.moved, BETA)
    assert np.array_equal(done.standing.account.residual, target - decoded(SPEC, FINAL.sent, COUNT))
    assert done.standing.pending is None
    assert done.standing.account.pending is None


def test_pendings_may_follow_each_other() -> None:
    second = outstanding(work(noise(5), revision=2), round_id=4, revision=2)
    waiting = settle(SPEC, STANDING, [plan(place(FINAL.sent, "deferred"))]).standing
    held = Standing(waiting.account, (second,), waiting.pending)
    done = settle(
        SPEC, held, [plan(place(FINAL.sent, "rejected", "too_late"), place(second.sent, "deferred"), revision=3)]
    )
    assert done.standing.pending is second.sent
    assert np.array_equal(done.standing.account.residual, wanted(ACCOUNT, FINAL.work.moved, BETA))


def test_a_plan_that_forgets_a_pending_one_has_not_seen_its_bytes() -> None:
    plans = [plan(place(FINAL.sent, "deferred")), plan(revision=3), plan(revision=4)]
    done = settle(SPEC, STANDING, plans)
    assert np.array_equal(done.standing.account.residual, wanted(ACCOUNT, FINAL.work.moved, BETA))
    assert done.standing.pending is None


def test_later_plans_can_not_name_what_was_made_on_an_earlier_base() -> None:
    done = settle(SPEC, STANDING, [plan(), plan(place(FINAL.sent), revision=3)])
    assert done.mark is None
    assert len(done.alarms) == 1


def test_a_delta_that_was_never_sent_is_an_alarm_and_counts_for_nothing() -> None:
    done = one(place(FINAL.sent, delta=Sha256("b" * 64)))
    assert done.standing.account is ACCOUNT
    assert done.mark is None
    assert "does not hold" in done.alarms[0]


def test_two_submissions_of_one_base_are_an_alarm_and_one_of_them_counts() -> None:
    done = one(place(ADOPTED.sent), place(FINAL.sent))
    assert done.mark is FINAL
    assert "takes 2" in done.alarms[0]
