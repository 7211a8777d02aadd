"""Rollbacks and cold starts on the disk of a miner, and how the learning rate rises after them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.merge.account import Account
from common.runlog.restarts import rewarming
from common.runlog.state import Restart
from common.units import Revision, RoundId
from miner.adamw import OptimizerState
from miner.ledger import Ledger
from miner.state import Memory, StateFolder
from tests.miner.working import COUNT, SPEC, folder, noise, outstanding, work
from tests.runlog.support import after, committed, frozen, led, opened, paused, resumed, rolled_back, steady

BACK = Restart(9, Revision(1), RoundId(4), "rollback")
COLD = Restart(9, Revision(1), RoundId(4), "cold")


class Killed(Exception):
    """The process died here."""


def stored(path: Path) -> Ledger:
    """A ledger with a residual, moments, carried work and a submission, all on revision 1."""
    disk = folder(path)
    optimizer = OptimizerState(noise(8), noise(9) ** 2, 17)
    disk.save_memory(Memory(Account(noise(7)), optimizer, Revision(1), None, work(noise(5))))
    ledger = Ledger.open(SPEC, disk, COUNT)
    asyncio.run(ledger.hand_in(outstanding(work(noise(1)), ledger.account)))
    return Ledger.open(SPEC, disk, COUNT)


def void(ledger: Ledger) -> bool:
    moments = ledger.optimizer
    assert moments is not None
    return not (ledger.account.residual.any() or moments.first.any() or moments.steps or ledger.live or ledger.work)


def test_a_rollback_to_the_very_revision_that_is_settled_voids_everything_once(tmp_path: Path) -> None:
    ledger = stored(tmp_path)
    assert (ledger.honoured, len(ledger.live)) == (0, 1)
    old = ledger.live[0]
    assert asyncio.run(ledger.restart(Revision(1), (BACK,)))[0]
    held = Ledger.open(SPEC, folder(tmp_path), COUNT)
    assert void(ledger)
    assert void(held)
    assert (held.settled, held.honoured) == (1, 1)
    assert not asyncio.run(held.hand_in(old)), "what was being made for a round before it is too late"
    assert asyncio.run(held.hand_in(outstanding(work(noise(3)), round_id=BACK.round)))
    asyncio.run(held.settle(Revision(2), held.outcome(()), None))
    assert held.honoured == 1


@pytest.mark.parametrize("step", ["save_memory", "drop_submission"])
@pytest.mark.parametrize("done", [False, True])
def test_a_kill_at_any_step_leads_to_the_same_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, done: bool
) -> None:
    ledger = stored(tmp_path)
    real = getattr(StateFolder, step)

    def dies(self: StateFolder, *args: object) -> None:
        if done:
            real(self, *args)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(StateFolder, step, dies)
        with pytest.raises(Killed):
            asyncio.run(ledger.restart(Revision(1), (BACK,)))
    again = Ledger.open(SPEC, folder(tmp_path), COUNT)
    if again.honoured == 0:
        asyncio.run(again.restart(Revision(1), (BACK,)))
    assert void(again)
    assert void(Ledger.open(SPEC, folder(tmp_path), COUNT))


def test_a_cold_start_clears_the_moments_and_nothing_else(tmp_path: Path) -> None:
    ledger = stored(tmp_path)
    assert not asyncio.run(ledger.restart(Revision(1), (COLD,)))[0]
    held = Ledger.open(SPEC, folder(tmp_path), COUNT)
    assert held.optimizer is not None
    assert (held.optimizer.steps, held.honoured, len(held.live)) == (0, 1, 1)
    assert np.array_equal(held.account.residual, noise(7))


def test_a_policy_that_keeps_the_moments_keeps_them(tmp_path: Path) -> None:
    stored(tmp_path)
    spec = replace(SPEC, restart=replace(SPEC.restart, reset_inner=False))
    disk = folder(tmp_path)
    ledger = Ledger(spec, disk, COUNT, disk.load_memory(), ())
    asyncio.run(ledger.restart(Revision(1), (BACK,)))
    assert ledger.optimizer is not None
    assert ledger.optimizer.steps == 17
    assert not ledger.account.residual.any()


def test_whoever_begins_later_has_no_restart_to_honour(tmp_path: Path) -> None:
    ledger = Ledger.open(SPEC, folder(tmp_path), COUNT)
    asyncio.run(ledger.adopt(Revision(1), (BACK,)))
    assert ledger.honoured == 1
    assert not asyncio.run(ledger.hand_in(outstanding(work(noise(1)), round_id=3)))


def test_the_learning_rate_rises_along_the_lineage_after_a_restart() -> None:
    spec, round_ = SPEC, (opened, frozen, committed)
    state = after(led(), *round_ * 3)
    assert rewarming(state, RoundId(3), Revision(3)) is None
    state = after(state, lambda s: rolled_back(s, 1))
    first = rewarming(state, state.next_round, Revision(1))
    assert first is not None
    assert first.factor(0) == pytest.approx(1 / spec.restart.rewarm_steps)
    assert rewarming(state, RoundId(2), Revision(1)) is None, "the rounds before it had the full rate"
    state = after(state, *round_)
    second = rewarming(state, state.next_round, state.head)
    assert second is not None
    assert second.done == spec.inner.steps_of(Revision(1))
    cold = after(state, paused, lambda s: resumed(s, cold=True))
    third = rewarming(cold, cold.next_round, cold.head)
    assert third is not None
    assert third.done == 0


@steady(50)
@given(st.integers(0, 5), st.integers(0, 40))
def test_the_factor_rises_to_one_and_stays(base: int, local: int) -> None:
    state = after(led(), opened, frozen, committed, lambda s: rolled_back(s, 0))
    for _ in range(base):
        state = after(state, opened, frozen, committed)
    found = rewarming(state, state.next_round, state.head)
    assert found is not None
    assert 0 < found.factor(local) <= found.factor(local + 1) <= 1
    assert found.factor(found.steps) == 1
