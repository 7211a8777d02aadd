"""Digests of whole merges: a plan with all that Protocol 2 allows in it, merged as the leader and a verifier do.

The plan has whole, clipped, capped and late members (the last one coded with its own base's density), one that was
rejected and one that was deferred, weights that are no whole numbers, and damping.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np

from common.codec.container import encode
from common.codec.params import F32, delta_params
from common.merge.mean import member_scale
from common.merge.outer import OuterState
from common.records import ObjectRef
from common.runlog.entries import PlanMember, RoundFrozen
from common.runlog.recompute import MergeResult, merge_round
from common.spec import CodecSpec, OuterSpec, RunSpec
from common.units import Hotkey, Revision, RoundId, Sha256, ShardId, Uid, sha256_hex
from tests.merge.golden_inputs import digest, noise
from tests.support.specs import tiny_spec

BASE = Revision(2)
SHARD = ShardId(0)
DAMPING = float(np.float32(0.7745967))
WEIGHTS_BEFORE = noise(30)
CODECS = {
    "topk-8": CodecSpec("topk", (4096, 1024, 64), 8, 0.95, 4),
    "topk-16": CodecSpec("topk", (4096, 1024, 64), 16, 0.95, 4),
    "bf16": CodecSpec("bf16", (4096,), 16, 0.95, 1),
}
OUTERS = {"plain": OuterSpec(1.0, 0.0), "nesterov": OuterSpec(0.7, 0.9)}

Decision = Literal["accepted", "rejected", "deferred"]
MEMBERS: list[tuple[Decision, int, int, float, float]] = [  # decision, revisions late, tokens, weight, clip factor
    ("accepted", 0, 1000, 1000.0, 1.0),
    ("accepted", 0, 3000, 3000.0, 0.3),
    ("accepted", 0, 90_000, 2345.678, 1.0),
    ("accepted", 0, (1 << 24) + 3, float((1 << 24) + 4), 0.77),
    ("accepted", 1, 1001, 500.5, 1.0),
    ("accepted", 1, 7, 0.1, 0.9),
    ("rejected", 0, 500, 0.0, 0.0),
    ("deferred", 0, 500, 0.0, 0.0),
]


def spec_of(codec: str, outer: str) -> RunSpec:
    return tiny_spec(codec=CODECS[codec], outer=OUTERS[outer])


def plan_and_deltas(spec: RunSpec) -> tuple[RoundFrozen, dict[Sha256, bytes]]:
    """The plan, and the bytes of every delta by hash; those that must not be read are missing."""
    members, deltas = [], {}
    for index, (decision, late, tokens, weight, clip) in enumerate(MEMBERS):
        base = Revision(BASE - late)
        delta = encode(noise(10 + index), delta_params(spec.codec, base))
        if decision == "accepted":
            deltas[sha256_hex(delta)] = delta
        members.append(_member(index, decision, base, tokens, (weight, clip), delta))
    return RoundFrozen(RoundId(9), BASE, 1, DAMPING, tuple(members)), deltas


def merged(spec: RunSpec) -> MergeResult:
    """The plan's merge into seeded weights, with momentum and residual of an earlier round."""
    plan, deltas = plan_and_deltas(spec)
    outer = OuterState(momentum_before(spec), noise(32))
    return merge_round(spec, SHARD, plan, lambda member: deltas[member.delta.sha256], WEIGHTS_BEFORE, outer)


def momentum_before(spec: RunSpec) -> F32 | None:
    return noise(31) if spec.outer.momentum else None


def round_digests() -> Iterator[tuple[str, str]]:
    """Update bytes, weights and outer state of every variant."""
    for codec in CODECS:
        for outer in OUTERS:
            result = merged(spec_of(codec, outer))
            yield f"{codec}-{outer}-update", digest(result.update_bytes)
            yield f"{codec}-{outer}-weights", result.weights_sha256[:16]
            yield f"{codec}-{outer}-outer", result.outer_sha256[:16]


def _member(
    index: int, decision: Decision, base: Revision, tokens: int, weight_clip: tuple[float, float], delta: bytes
) -> PlanMember:
    weight, clip = (float(np.float32(number)) for number in weight_clip)
    return PlanMember(
        shard=SHARD,
        hotkey=Hotkey(f"hotkey-{index}"),
        round=RoundId(9 - (BASE - base)),
        base_revision=base,
        uid=Uid(index),
        registered_block=1,
        delta=ObjectRef(sha256_hex(delta), len(delta)),
        manifest_sha256=sha256_hex(b"manifest"),
        tokens_claimed=tokens,
        tokens=tokens,
        decision=decision,
        code="" if decision == "accepted" else "duplicate",
        reason="",
        weight=weight,
        scale=member_scale(weight, clip),
    )
