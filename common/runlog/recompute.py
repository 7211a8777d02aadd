"""One shard's merge, from the plan and the deltas that it names to the next revision.

The leader commits what this returns, and whoever verifies the run calls it again on the same bytes: equal inputs give
equal bits on every machine (see ``mean.py`` and ``outer.py``). Pure: the deltas come through ``read_delta``, one at a
time, so memory holds a few vectors of the shard's length, however many members there are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from common.codec.container import decode
from common.codec.params import F32, delta_params, update_params
from common.errors import Rejected
from common.merge.damping import damped_divisor
from common.merge.mean import MeanAccumulator
from common.merge.outer import OuterState, compress_update, outer_step
from common.model.layout import little_endian_bytes, weights_hash
from common.records import ObjectRef
from common.runlog.entries import PlanMember, RoundFrozen
from common.spec import RunSpec
from common.units import Revision, Sha256, ShardId, sha256_hex

ReadDelta = Callable[[PlanMember], bytes]
"""The bytes of a member's delta, proved to have the hash that the plan names."""
ValuesOf = Callable[[PlanMember], F32]
"""What a member's delta decodes to."""


@dataclass(frozen=True)
class MergeResult:
    """What a merge makes of one shard."""

    update_bytes: bytes
    """The update object."""
    u: F32
    """What the update decodes to."""
    new_weights: F32
    new_outer_state: OuterState
    weights_sha256: Sha256
    outer_sha256: Sha256

    @property
    def update(self) -> ObjectRef:
        """The update object's name and size."""
        return ObjectRef(sha256_hex(self.update_bytes), len(self.update_bytes))


def merge_round(
    spec: RunSpec,
    shard: ShardId,
    plan: RoundFrozen,
    read_delta: ReadDelta,
    base_weights: F32,
    outer_state: OuterState,
) -> MergeResult:
    """Merge the plan's accepted members of ``shard`` into the plan's base; the inputs are left alone.

    Raises ``Rejected``: ``no_members``, the decoder's codes for a delta that the plan should not have accepted, and
    ``bad_merge`` for a result that is not finite: then the round must abort. What ``read_delta`` raises passes.
    """
    mean = mean_round(spec, shard, plan, read_delta, len(base_weights))
    return merge_mean(spec, shard, plan, mean, base_weights, outer_state)


def mean_round(spec: RunSpec, shard: ShardId, plan: RoundFrozen, read_delta: ReadDelta, count: int) -> F32:
    """The mean of the plan's accepted deltas of ``shard``, of ``count`` values. Raises as ``merge_round``."""
    return _mean(shard, plan, lambda m: _decoded(spec, read_delta(m), m, count), count)


def merge_values(
    spec: RunSpec,
    shard: ShardId,
    plan: RoundFrozen,
    values_of: ValuesOf,
    base_weights: F32,
    outer_state: OuterState,
) -> MergeResult:
    """``merge_round`` for whoever has the deltas decoded already."""
    mean = _mean(shard, plan, values_of, len(base_weights))
    return merge_mean(spec, shard, plan, mean, base_weights, outer_state)


def accepted_members(plan: RoundFrozen, shard: ShardId) -> tuple[PlanMember, ...]:
    """Whose deltas make the mean of ``shard``, in the order in which they are added. ``Rejected('no_members')``."""
    members = tuple(m for m in plan.members if m.shard == shard and m.decision == "accepted")
    if not members:
        raise Rejected("no_members", f"the plan of round {plan.round} accepts nobody on shard {shard}")
    return members


def divisor(plan: RoundFrozen, members: Iterable[PlanMember]) -> float:
    """What the sum of the accepted members is divided by. Raises ``ValueError``."""
    return damped_divisor((member.weight for member in members), plan.damping)


def merge_mean(
    spec: RunSpec, shard: ShardId, plan: RoundFrozen, mean: F32, base_weights: F32, outer_state: OuterState
) -> MergeResult:
    """``merge_round`` for whoever has the mean of the accepted deltas already, however it was put together."""
    try:
        update = compress_update(
            mean,
            outer_state.residual,
            update_params(spec.codec, plan.base_revision),
        )
        weights, momentum = _step(spec, base_weights, update.values, outer_state.momentum)
    except ValueError as error:
        raise _bad_merge(plan, shard, error) from None
    outer = OuterState(momentum, update.residual)
    return MergeResult(update.data, update.values, weights, outer, weights_hash(weights), hash_outer(outer))


def apply_update(
    spec: RunSpec, base_revision: Revision, update_bytes: bytes, base_weights: F32, momentum: F32 | None
) -> tuple[F32, F32 | None]:
    """The outer step as every node does it that reads only the update: new weights and momentum.

    Raises ``Rejected``: the decoder's codes, or ``bad_merge``.
    """
    params = update_params(spec.codec, base_revision)
    u = decode(update_bytes, expect=params, count=len(base_weights))
    try:
        return _step(spec, base_weights, u, momentum)
    except ValueError as error:
        raise Rejected("bad_merge", f"the update of revision {base_revision}: {error}") from None


def hash_outer(outer: OuterState) -> Sha256:
    """SHA-256 over momentum, then residual; no momentum counts as no bytes."""
    digest = hashlib.sha256()
    if outer.momentum is not None:
        digest.update(little_endian_bytes(outer.momentum))
    digest.update(little_endian_bytes(outer.residual))
    return Sha256(digest.hexdigest())


def _mean(shard: ShardId, plan: RoundFrozen, values_of: ValuesOf, count: int) -> F32:
    members = accepted_members(plan, shard)
    mean = MeanAccumulator(count)
    for member in members:
        mean.add(member.scale, values_of(member))
    try:
        return mean.finish(divisor(plan, members))
    except ValueError as error:
        raise _bad_merge(plan, shard, error) from None


def _bad_merge(plan: RoundFrozen, shard: ShardId, error: ValueError) -> Rejected:
    return Rejected("bad_merge", f"round {plan.round}, shard {shard}: {error}")


def _decoded(spec: RunSpec, data: bytes, member: PlanMember, count: int) -> F32:
    try:
        return decode(data, expect=delta_params(spec.codec, member.base_revision), count=count)
    except Rejected as error:
        raise Rejected(error.code, f"the accepted delta of {member.hotkey}: {error.message}") from None


def _step(spec: RunSpec, base: F32, u: F32, momentum: F32 | None) -> tuple[F32, F32 | None]:
    return outer_step(base, u, momentum, spec.outer.lr, spec.outer.momentum)
