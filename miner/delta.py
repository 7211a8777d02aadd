"""From a round's work to a submission, and from the round's end to the new residual. Pure.

A miner refuses to send what the gates would refuse, and says why. The accounting of error feedback is in
``common/merge/feedback.py``: whatever becomes of a submission, what was not merged stays in the residual. The one thing
that is thrown away is a vector that is not finite, since it would poison everything after it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from common import keys
from common.canonical import Json
from common.codec.container import decode, encode, partition_hashes
from common.codec.params import CodecParams, delta_params
from common.errors import Rejected
from common.identity import SignedRecord, Signer
from common.merge import feedback as fb
from common.merge.feedback import Feedback, Settled
from common.merge.gates import check_delta
from common.model.layout import Vector
from common.records import Manifest, ObjectRef, open_manifest, sign_manifest
from common.runlog.entries import PlanMember
from common.spec import SCHEMA, RunSpec
from common.units import RoundId, ShardId, sha256_hex
from miner.trace import trace_root
from miner.work import WorkDone

NUM_PARTITIONS = 1
"""Ranges of a delta that the manifest names by hash; more of them come with the butterfly."""
ADAM_REACH = 4.0
"""AdamW moves a value by at most about this many learning rates a step."""
REJECTED_CAP = 2.0
"""After a rejection the residual keeps at most this many times the norm of the round's own work."""


@dataclass(frozen=True)
class Submission:
    """A delta ready to be sent, and what is needed to settle it later."""

    manifest: Manifest
    record: SignedRecord
    """The signed manifest."""
    target: Vector
    """``β·residual + (local − base)``: what the miner wanted to say."""
    delta: bytes
    """What it says: the encoded target."""
    cap_norm: float
    """Norm that the residual keeps at most if the plan rejects the delta."""

    @property
    def round(self) -> RoundId:
        return self.manifest.round


def build(spec: RunSpec, memory: Feedback, work: WorkDone, base: Vector, signer: Signer) -> Submission:
    """Encode and sign the work. Raises ``Rejected`` (``absurd_norm``, ``no_tokens``, and as ``check_delta`` finds)."""
    target = fb.target(memory, work.local, base, spec.codec.feedback)
    work_norm = fb.norm(work.local - base)
    refuse(spec, target, work, fb.norm(memory.residual))
    params = delta_params(spec.codec, work.base_revision)
    delta = encode(target, params)
    manifest = _manifest(spec, work, delta, params, len(target), signer)
    return Submission(manifest, sign_manifest(manifest, signer), target, delta, REJECTED_CAP * work_norm)


def reopen(spec: RunSpec, envelope: Json, target: Vector, delta: bytes, cap_norm: float) -> Submission:
    """A submission read back from disk. Raises ``Rejected`` unless manifest and delta belong together."""
    manifest, record = open_manifest(envelope, spec.run)
    if sha256_hex(delta) != manifest.delta.sha256:
        raise Rejected("bad_state", "the stored delta is not the one that its manifest names")
    return Submission(manifest, record, target, delta, cap_norm)


def refuse(spec: RunSpec, target: Vector, work: WorkDone, residual_norm: float) -> None:
    """Raise ``Rejected`` for a delta that no gate would let pass."""
    if work.steps == 0:
        raise Rejected("no_tokens", "no inner step was taken in this round")
    found = check_delta(target)
    if found is not None:
        raise Rejected(found.code, found.reason)
    size = fb.norm(target)
    reach = ADAM_REACH * spec.inner.lr * work.steps * math.sqrt(len(target)) + residual_norm
    if size > reach:
        raise Rejected("absurd_norm", f"its norm {size:.4g} is more than {work.steps} steps can do ({reach:.4g})")


def unsent(spec: RunSpec, memory: Feedback, moved: Vector) -> Settled:
    """The memory after a round in which nothing was sent: the work ``moved = local − base`` goes into the residual."""
    target = fb.target(memory, moved, np.zeros_like(moved), spec.codec.feedback)
    if not np.isfinite(target).all():
        return Settled(memory, fb.norm(memory.residual), 0.0, "the round's work is not finite and was dropped")
    return fb.not_named(memory, target)


def settle(spec: RunSpec, memory: Feedback, sent: Submission, member: PlanMember | None, committed: bool) -> Settled:
    """The memory after the round of ``sent`` has ended; ``member`` is what the plan says of this miner."""
    if member is None or not committed or member.delta.sha256 != sent.manifest.delta.sha256:
        return fb.not_named(memory, sent.target)
    if member.decision == "rejected":
        return fb.rejected(memory, sent.target, sent.cap_norm)
    params = delta_params(spec.codec, sent.manifest.base_revision)
    return fb.named(memory, sent.target, decode(sent.delta, expect=params, count=len(sent.target)))


def _manifest(spec: RunSpec, work: WorkDone, delta: bytes, params: CodecParams, count: int, signer: Signer) -> Manifest:
    shard, digest = ShardId(0), sha256_hex(delta)
    return Manifest(
        schema=SCHEMA,
        run=spec.run,
        signer=signer.hotkey,
        key=keys.delta_key(spec.run, work.round, shard, signer.hotkey, digest),
        round=work.round,
        base_revision=work.base_revision,
        base_sha256=work.base_sha256,
        shard=shard,
        delta=ObjectRef(digest, len(delta)),
        tokens=work.tokens,
        steps=work.steps,
        sample_start=work.sample_start,
        sample_count=work.sample_count,
        trace_root=trace_root(work.trace),
        partitions=partition_hashes(delta, count, params, NUM_PARTITIONS),
    )
