"""What each settlement does to the account, and what it refuses. The law over whole histories: test_account_law.py."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from common.codec.params import F32
from common.merge import account as ac
from common.merge.account import Account, Merged, Pending
from common.units import Revision, RoundId, sha256_hex

COUNT = 70_000  # more than one block
BETA = 0.95
FULL = Merged(tokens=1000, weight=1000.0, scale=1000.0)


def normal(seed: int, scale: float = 1.0) -> F32:
    return (np.random.default_rng(seed).standard_normal(COUNT) * scale).astype(np.float32)


def pending(seed: int = 5, cap_norm: float = 1e9, round_id: int = 3) -> Pending:
    target = normal(seed)
    sent = np.where(np.abs(target) > 1, target, np.float32(0))
    return Pending(RoundId(round_id), Revision(2), sha256_hex(b"delta"), target, sent, cap_norm)


def same(one: F32, other: F32) -> bool:
    return one.tobytes() == other.tobytes()


def named(settled: ac.Settled) -> dict[str, float]:
    """The norms of the flows that are not empty."""
    return {name: norm for name, flow in settled.flows.named() if (norm := flow.norm())}


def test_the_target_is_the_decayed_residual_plus_the_work() -> None:
    held = Account(normal(0))
    assert same(ac.wanted(held, normal(1), BETA), normal(0) * np.float32(BETA) + normal(1))
    assert same(held.residual, normal(0))


def test_accepted_keeps_what_the_codec_left_out_whatever_weight_the_merge_gave() -> None:
    held, target, sent = Account(normal(0)), normal(1), normal(2)
    for terms in (FULL, Merged(1000, 500.0, 125.0)):
        assert same(ac.accepted(held, target, sent, terms, BETA).account.residual, target - sent)


def test_weight_and_clip_factor_share_out_what_was_sent() -> None:
    settled = ac.accepted(Account.empty(COUNT), normal(1), normal(2), Merged(1000, 500.0, 125.0), BETA)
    whole = ac.norm(normal(2))
    assert named(settled) == {
        "merged": pytest.approx(whole / 8),
        "clipped": pytest.approx(whole * 3 / 8),
        "weighed_down": pytest.approx(whole / 2),
    }
    assert "12.5% of what was sent is merged (37.5% clipped, 50.0% weighed down)" in settled.reason


def test_a_whole_member_is_merged_and_nothing_else() -> None:
    settled = ac.accepted(Account.empty(COUNT), normal(1), normal(2), FULL, BETA)
    assert named(settled) == {"merged": pytest.approx(ac.norm(normal(2)))}
    assert same(settled.flows.merged.values().astype(np.float32), normal(2))
    many = (1 << 25) + 1  # not a float32, so the plan's weight can't be it
    assert Merged(many, float(np.float32(many)), float(np.float32(many))).parts == (1.0, 0.0, 0.0)


@pytest.mark.parametrize("settle", ["accepted", "rejected", "not_capped", "deferred"])
def test_the_decay_is_booked_once_at_the_settlement(settle: str) -> None:
    held, target = Account(normal(0)), normal(1)
    for _ in range(3):
        ac.wanted(held, normal(1), BETA)  # drips
    settled = {
        "accepted": lambda: ac.accepted(held, target, normal(2), FULL, BETA),
        "rejected": lambda: ac.rejected(held, target, 1e9, BETA),
        "not_capped": lambda: ac.not_capped(held, target, BETA),
        "deferred": lambda: ac.deferred(held, pending(), BETA),
    }[settle]()
    assert named(settled)["decayed"] == pytest.approx(0.05 * ac.norm(normal(0)), rel=1e-5)


def test_the_cap_after_a_rejection_says_what_it_dropped() -> None:
    settled = ac.rejected(Account.empty(COUNT), normal(1), 10.0, BETA)
    dropped = named(settled)["rejected"]
    assert ac.norm(settled.account.residual) == pytest.approx(10.0, rel=1e-5)
    assert 10.0 + dropped == pytest.approx(ac.norm(normal(1)), rel=1e-5)
    assert f"its cap dropped a norm of {dropped:.4g}" in settled.reason
    within = ac.rejected(Account.empty(COUNT), normal(1), 1e9, BETA)
    assert same(within.account.residual, normal(1))
    assert named(within) == {}


def test_what_could_not_be_judged_is_kept_whole() -> None:
    settled = ac.not_capped(Account.empty(COUNT), normal(1, 1e6), BETA)
    assert same(settled.account.residual, normal(1, 1e6))
    assert named(settled) == {}


def test_what_is_pending_is_out_of_the_residual_and_of_the_next_target() -> None:
    one = pending()
    held = ac.deferred(Account(normal(0)), one, BETA).account
    assert held.pending is one
    assert same(ac.wanted(held, normal(1), BETA), normal(1))


def test_the_next_plan_settles_what_is_pending() -> None:
    one = pending(cap_norm=10.0)
    held = Account(normal(0), one)
    accepted = ac.pending_accepted(held, Merged(1000, 500.0, 500.0))
    assert same(accepted.account.residual, normal(0) + (one.target - one.sent))
    assert set(named(accepted)) == {"merged", "weighed_down"}
    returned = ac.pending_returned(held)
    assert same(returned.account.residual, normal(0) + one.target)
    assert named(returned) == {}
    rejected = ac.pending_rejected(held)
    assert ac.norm(rejected.account.residual - normal(0)) == pytest.approx(10.0, rel=1e-5)
    assert set(named(rejected)) == {"rejected"}
    assert {settled.account.pending for settled in (accepted, returned, rejected)} == {None}


def test_one_plan_may_defer_the_own_submission_and_settle_the_pending_one() -> None:
    first, second = pending(5, round_id=3), pending(6, round_id=4)
    between = ac.deferred(Account(normal(0), first), second, BETA).account
    with pytest.raises(ValueError, match="round 3 must be settled first"):
        ac.deferred(between, pending(7, round_id=5), BETA)
    after = ac.pending_returned(between).account
    assert (after.pending, after.due) == (second, None)
    assert same(after.residual, first.target)


def test_nothing_pending_cannot_be_settled() -> None:
    for settle in (ac.pending_returned, ac.pending_rejected, lambda held: ac.pending_accepted(held, FULL)):
        with pytest.raises(ValueError, match="nothing is pending"):
            settle(Account(normal(0)))


def test_a_rollback_voids_residual_and_pendings_by_name() -> None:
    first, second = pending(5), pending(6)
    settled = ac.rolled_back(Account(normal(0), second, first))
    assert settled.account.pending is None
    assert not settled.account.residual.any()
    void = settled.flows.rolled_back.values()
    assert np.abs(void - (normal(0).astype(np.float64) + first.target + second.target)).max() < 1e-12
    assert set(named(settled)) == {"rolled_back"}


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused(poison: float) -> None:
    bad = normal(1)
    bad[-1] = poison
    held, good = Account(normal(0)), normal(2)
    attempts: list[Callable[[], object]] = [
        lambda: Account(bad),
        lambda: ac.wanted(held, bad, BETA),
        lambda: ac.accepted(held, bad, good, FULL, BETA),
        lambda: ac.accepted(held, good, bad, FULL, BETA),
        lambda: ac.rejected(held, bad, 1.0, BETA),
        lambda: ac.not_capped(held, bad, BETA),
        lambda: Pending(RoundId(1), Revision(0), sha256_hex(b""), bad, good, 1.0),
        lambda: Pending(RoundId(1), Revision(0), sha256_hex(b""), good, bad, 1.0),
    ]
    for attempt in attempts:
        with pytest.raises(ValueError, match="1 of 70000 values that are infinite or not a number"):
            attempt()


def test_sums_past_float32_are_refused() -> None:
    huge = np.full(COUNT, 3e38, dtype=np.float32)
    one = Pending(RoundId(1), Revision(0), sha256_hex(b""), huge, -huge, 1.0)
    attempts: list[Callable[[], object]] = [
        lambda: ac.wanted(Account(huge), huge, BETA),
        lambda: ac.accepted(Account(huge), huge, -huge, FULL, BETA),
        lambda: ac.pending_returned(Account(huge, one)),
        lambda: ac.pending_accepted(Account(huge, one), FULL),
    ]
    for attempt in attempts:
        with pytest.raises(ValueError, match="infinite"):
            attempt()


def test_numbers_that_mean_nothing_are_refused() -> None:
    for cap_norm in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="cap_norm"):
            ac.rejected(Account.empty(COUNT), normal(1), cap_norm, BETA)
    for tokens, weight, scale in [(0, 1.0, 1.0), (10, 0.0, 0.0), (10, float("nan"), 1.0), (10, 1.0, -1.0)]:
        with pytest.raises(ValueError, match="no member is accepted"):
            Merged(tokens, weight, scale)
    for wrong in (normal(0)[1:], normal(0).astype(np.float64)):
        with pytest.raises(ValueError, match="float32"):
            ac.wanted(Account.empty(COUNT), wrong, BETA)  # type: ignore[arg-type]


def test_a_vector_of_zeros_is_capped_without_a_division() -> None:
    assert not ac.rejected(Account.empty(COUNT), np.zeros(COUNT, np.float32), 0.0, BETA).account.residual.any()
