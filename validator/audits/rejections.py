"""Was a delta rejected for what it is not? Checked again by followers, as far as it follows from public bytes alone.

Decided are the reasons that lie in the delta itself: how it decodes, whether its numbers are finite, whether it is
empty, the hashes of its partitions, its base. Not decided, and never held against a leader, is what depends on its
clock (what came, when, and how much work was seen), on the other deltas (copies, norms, directions) or on a measured
loss. Nor is a reason that this version does not know: a newer leader may have it from a gate that is not here yet.
That lets no leader get away with more, since the reasons that only it can know do as much. Blocking, but for nothing
else impure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from common import keys
from common.codec.container import decode
from common.codec.params import delta_params
from common.errors import Rejected
from common.merge.gates import check_delta
from common.model.layout import run_layouts
from common.records import MAX_MANIFEST_BYTES, Manifest, decode_submission
from common.runlog.entries import PlanMember
from common.runlog.remerge import read_delta
from common.spec import RunSpec
from common.store.port import ObjectReader
from validator.checks import check_bytes
from validator.judgement import SUSPECT

LEADERS_VIEW = frozenset({"not_uploaded", "too_late", "no_tokens"})
"""Depends on what the leader saw, and when."""
OTHERS = frozenset({"duplicate", "norm_too_large", "wrong_direction", SUSPECT})
"""Depends on the other deltas, or on a loss that was measured."""


OF_ITS_BYTES = frozenset(
    {
        "wrong_size",
        "checksum_mismatch",
        "bad_magic",
        "wrong_schema",
        "bad_header",
        "bad_indices",
        "bad_magnitude",
        "non_canonical",
        "bad_partitions",
        "non_finite",
        "zero_delta",
    }
)
"""What ``check_bytes``, with the decoders behind it, and ``check_delta`` find: follows from the delta alone."""


@dataclass(frozen=True)
class Again:
    """What a rejection looks like when it is checked again."""

    finding: Literal["right", "false", "undecided", "not_known"]
    """not_known: this version has no such reason, and no opinion."""
    why: str


def look_again(reader: ObjectReader, spec: RunSpec, member: PlanMember) -> Again:
    """Judge one rejected member of a plan that counts. ``Retryable`` when the store stays away."""
    if member.code in LEADERS_VIEW:
        return Again("undecided", f"{member.code} depends on what its leader saw, and when")
    if member.code in OTHERS:
        return Again("undecided", f"{member.code} depends on other deltas, or on a measured loss")
    if member.code == "base_mismatch":
        return Again("false", f"the log itself has it on revision {member.base_revision}, which this plan takes")
    if member.code not in OF_ITS_BYTES:
        return Again("not_known", f"this version of brigade does not know the reason {member.code!r}")
    try:
        manifest = _manifest(reader, spec, member)
        body = read_delta(reader, spec.run, member)
    except Rejected as refusal:
        return Again("undecided", f"what it was made of can't be had: {refusal}")
    return _by_bytes(spec, member, manifest, body)


def _manifest(reader: ObjectReader, spec: RunSpec, member: PlanMember) -> Manifest:
    key = keys.manifest_key(spec.run, member.round, member.shard, member.hotkey, member.delta.sha256)
    stored = decode_submission(reader.fetch(key, max_bytes=MAX_MANIFEST_BYTES), spec.run)
    if stored.manifest_record.sha256 != member.manifest_sha256:
        raise Rejected("wrong_member", "another manifest of it lies in the bucket")
    return stored.manifest


def _by_bytes(spec: RunSpec, member: PlanMember, manifest: Manifest, body: bytes) -> Again:
    count = run_layouts(spec.model, spec.num_shards)[member.shard].total
    found = check_bytes(body, spec, manifest, count)
    if not found.ok:
        return Again("right", f"{found.code}: {found.reason}")
    values = decode(body, expect=delta_params(spec.codec, manifest.base_revision), count=count)
    wrong = check_delta(values)
    if wrong is not None:
        return Again("right", f"{wrong.code}: {wrong.reason}")
    return Again("false", "its bytes are as announced, they decode, and they are finite and not empty")
