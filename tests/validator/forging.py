"""A leader that commits what it likes, and names words for it that two of its own miners have signed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from common import keys
from common.codec.params import F32
from common.data.dataset import Dataset
from common.merge.partition import slices_of
from common.records import ObjectRef
from common.reductions import Copy, Reduced, Reduction, TakenParts, UsedWord, sign_reduction
from common.runlog.entries import PlanMember, RoundFrozen
from common.runlog.recompute import MergeResult, mean_round, merge_mean
from common.runlog.reduced import true_means
from common.runlog.remerge import read_delta, start_outer
from common.runlog.state import RunState
from common.spec import ReduceSpec
from common.store.port import ObjectReader
from common.units import Sha256, ShardId, sha256_hex
from tests.support.specs import VALIDATOR
from tests.validator.butterflies import UNDRAWN, play_round
from tests.validator.test_following import WATCHER
from tests.validator.world import World
from validator import merging
from validator.heads import Memories

ALL = ShardId(0)
OWNERS = (0, 1)


def forged_round(
    dataset: Dataset,
    monkeypatch: pytest.MonkeyPatch,
    bend: Callable[[F32], F32],
    body_of: Callable[[F32], bytes] = lambda values: values.tobytes(),
    reduce: ReduceSpec = UNDRAWN,
) -> World:
    """The leader merges ``bend(mean)``; its two miners sign ``body_of`` each partition of that. No guard stands."""
    world = World(dataset, validators=(VALIDATOR.hotkey, WATCHER.hotkey), reduce=reduce)
    made: list[Reduced] = []

    def lying(
        state: RunState, plan: RoundFrozen, base: Memories, reader: ObjectReader, _: Mapping[ShardId, F32] | None = None
    ) -> tuple[MergeResult, ...]:
        spec, [memory] = state.spec, base
        count = len(memory.weights)
        assert state.open_round is not None
        assert state.open_round.plan_sha256 is not None

        def read(member: PlanMember) -> bytes:
            return read_delta(reader, spec.run, member)

        bent = bend(mean_round(spec, ALL, plan, read, count)).astype(np.float32)
        slices = slices_of(spec, count)
        whole = [partition for partition, where in enumerate(slices) if where.mean_bytes]
        right = true_means(spec, plan, ALL, count, whole, read)
        bodies = {partition: body_of(bent[slice(*slices[partition].values)]) for partition in whole}
        copies = tuple(
            Copy(ALL, partition, ObjectRef(sha256_hex(body), len(body)), right[partition].inputs_sha256)
            for partition, body in bodies.items()
        )
        words = sorted(_signed(world, number, plan, state.open_round.plan_sha256, copies, bodies) for number in OWNERS)
        made.append(Reduced(tuple(UsedWord(*word) for word in words), (TakenParts(ALL, tuple(whole)),)))
        outer = start_outer(spec, memory.outer, state.resets_outer)
        return (merge_mean(spec, ALL, plan, bent, memory.weights, outer),)

    honest = merging.store_revision

    def storing(*facts: Any, **more: Any) -> merging.Merged:
        merged = honest(*facts, **more)
        return replace(merged, commit=replace(merged.commit, reduced=made[-1]))

    with monkeypatch.context() as patched:
        patched.setattr(merging, "merge_plan", lying)
        patched.setattr(merging, "store_revision", storing)
        patched.setattr(merging, "guard", lambda *_: "")
        asyncio.run(play_round(world, {}))
    return world


def _signed(
    world: World,
    number: int,
    plan: RoundFrozen,
    plan_sha256: Sha256,
    copies: tuple[Copy, ...],
    bodies: Mapping[int, bytes],
) -> tuple[Any, Sha256]:
    signer = world.miners[number].signer
    word = Reduction(1, world.spec.run, signer.hotkey, plan.round, plan_sha256, copies)
    record = sign_reduction(word, signer).encode()
    sha256 = sha256_hex(record)
    world.store.put(keys.reduction_key(word.run, word.round, signer.hotkey, sha256), record)
    for copy in copies:
        world.store.put(word.key_of(copy), bodies[copy.partition])
    return signer.hotkey, sha256
