"""From a mark of the training to a submission: encode, sign, and refuse what no gate would let pass. Pure.

What a submission says is ``target = β·residual + moved``; the accounting of it is in ``common/merge/account.py``.
The target is not kept: until its round is settled the residual does not change, so it can be computed again, bit for
bit.
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
from common.merge.account import Account, norm, wanted
from common.merge.gates import check_delta
from common.model.layout import Vector
from common.records import Manifest, ObjectRef, open_manifest, sign_manifest
from common.spec import SCHEMA, RunSpec
from common.units import Revision, RoundId, Sha256, ShardId, sha256_hex
from miner.trace import claimed, sample_ranges, trace_root
from miner.work import Mark, Work

SHARD = ShardId(0)
ADAM_REACH = 4.0
"""AdamW moves a value by at most about this many learning rates a step."""
REJECTED_CAP = 2.0
"""After a rejection the residual keeps at most this many times the norm of the work since the last settled mark."""


@dataclass(frozen=True)
class Submission:
    """A delta and its signed manifest, ready to be sent."""

    manifest: Manifest
    record: SignedRecord
    """The signed manifest."""
    delta: bytes
    """The encoded target."""

    @property
    def round(self) -> RoundId:
        return self.manifest.round

    @property
    def final(self) -> bool:
        return self.manifest.final

    @property
    def origin(self) -> tuple[RoundId, Revision, Sha256]:
        """Round, base revision and hash."""
        return self.manifest.round, self.manifest.base_revision, self.manifest.delta.sha256

    @property
    def name(self) -> tuple[RoundId, Sha256]:
        """What a plan calls it by."""
        return self.manifest.round, self.manifest.delta.sha256


@dataclass(frozen=True)
class Outstanding:
    """A submission that a plan may still name, and what is needed to settle it then."""

    sent: Submission
    work: Work
    cap_norm: float
    """Norm that the residual keeps at most if the plan rejects the delta."""

    @property
    def order(self) -> tuple[int, int, RoundId]:
        """Of two on one base the later one is larger."""
        return *self.work.reach, self.sent.round


def build(spec: RunSpec, account: Account, mark: Mark, round_id: RoundId, final: bool, signer: Signer) -> Outstanding:
    """Encode and sign the work of ``mark`` for a round on its base.

    Raises ``Rejected`` (``absurd_norm``, ``no_tokens``, and as ``check_delta`` finds).
    """
    target = refuse(spec, account, mark.work, mark.base.revision)
    params = delta_params(spec.codec, mark.base.revision)
    delta = encode(target, params)
    manifest = _manifest(spec, mark, round_id, final, delta, params, signer)
    sent = Submission(manifest, sign_manifest(manifest, signer), delta)
    return Outstanding(sent, mark.work, REJECTED_CAP * norm(mark.work.moved))


def reopen(spec: RunSpec, envelope: Json, delta: bytes) -> Submission:
    """A submission read back from disk. Raises ``Rejected`` unless manifest and delta belong together."""
    manifest, record = open_manifest(envelope, spec.run)
    if sha256_hex(delta) != manifest.delta.sha256:
        raise Rejected("bad_state", "the stored delta is not the one that its manifest names")
    return Submission(manifest, record, delta)


def decoded(spec: RunSpec, sent: Submission, count: int) -> Vector:
    """What the delta says. Raises ``Rejected`` as the decoder does."""
    return decode(sent.delta, expect=delta_params(spec.codec, sent.manifest.base_revision), count=count)


def refuse(spec: RunSpec, account: Account, work: Work, base: Revision) -> Vector:
    """The target, unless no gate would let it pass: then ``Rejected``."""
    if not claimed(work.trace, base):
        raise Rejected("no_tokens", "no inner step was taken that a leader would count")
    if not np.isfinite(work.moved).all():
        raise Rejected("non_finite", "the work has values that are infinite or not a number")
    try:
        target = wanted(account, work.moved, spec.codec.feedback)
    except ValueError as error:
        raise Rejected("non_finite", str(error)) from None
    found = check_delta(target)
    if found is not None:
        raise Rejected(found.code, found.reason)
    size = norm(target)
    reach = ADAM_REACH * spec.inner.lr * work.steps * math.sqrt(len(target)) + norm(account.residual)
    if size > reach:
        raise Rejected("absurd_norm", f"its norm {size:.4g} is more than {work.steps} steps can do ({reach:.4g})")
    return target


def _manifest(
    spec: RunSpec, mark: Mark, round_id: RoundId, final: bool, delta: bytes, params: CodecParams, signer: Signer
) -> Manifest:
    digest, trace = sha256_hex(delta), claimed(mark.work.trace, mark.base.revision)
    samples = sample_ranges(trace)
    return Manifest(
        schema=SCHEMA,
        run=spec.run,
        signer=signer.hotkey,
        key=keys.delta_key(spec.run, round_id, SHARD, signer.hotkey, digest),
        round=round_id,
        base_revision=mark.base.revision,
        base_sha256=mark.base.sha256,
        shard=SHARD,
        delta=ObjectRef(digest, len(delta)),
        final=final,
        tokens=sum(part.count for part in samples) * spec.data.seq_len,
        steps=len(trace),
        samples=samples,
        trace_root=trace_root(trace),
        partitions=partition_hashes(delta, len(mark.work.moved), params, spec.reduce.partitions),
    )
