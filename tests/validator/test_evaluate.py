"""Trials of deltas: a merge that evaluates in between two of them waits for one, and changes none."""

from __future__ import annotations

import asyncio

import pytest

from common.runlog.entries import PlanMember
from common.runlog.state import RunState
from common.units import Revision, RoundId, Sha256
from tests.validator.world import SHARD, World
from validator.heads import Heads
from validator.scorer import weights_of
from validator.scoring.evaluate import Evaluator, Stream, Trial


def trials_of(world: World, state: RunState) -> list[Trial]:
    trials = []
    for miner in world.miners:
        manifest, body = miner.make(state)
        numbers = (manifest.tokens, manifest.tokens)
        hotkey, digest = miner.signer.hotkey, Sha256("4" * 64)
        seat = world.seat(miner.signer)
        where = (SHARD, hotkey, RoundId(0), Revision(0), seat.uid, seat.registered_block, manifest.delta, digest)
        member = PlanMember(*where, *numbers, "accepted", "", "", 1.0, 1.0)
        trials.append(Trial(member, (Stream(manifest.base_sha256, manifest.samples[0]),), body))
    return trials


def test_a_merge_may_evaluate_its_result_between_two_trials(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        await world.begin(2)
        validator = world.validator()
        for _ in range(3):
            await validator.driver.step()

    asyncio.run(go())
    state, evaluator = world.log(), world.evaluator
    base = weights_of(Heads(world.validator().board.reader).get(state, Revision(0)))
    trials = trials_of(world, state)
    alone = evaluator.drops(base, Sha256("5" * 64), trials)
    assert len(alone) == 2
    merged = {shard: vector + 0.25 for shard, vector in base.items()}
    assigned, losses = Evaluator._assigned, []

    def and_merge(self: Evaluator, manifest: object) -> object:
        losses.append(self.heldout_loss(merged))
        return assigned(self, manifest)  # type: ignore[arg-type]

    monkeypatch.setattr(Evaluator, "_assigned", and_merge)
    assert evaluator.drops(base, Sha256("5" * 64), trials) == alone
    assert len(losses) == 2
