"""Is the object what its manifest says? Size, hash, whether it decodes to finite numbers of the run's codec,
and the hashes of its partitions.

Invariant: there is a finding for whatever bytes lie there; a store that stays away or refuses for reasons of its own
raises (``Retryable``), so that nobody is rejected for an outage.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from common.codec.container import check as check_container
from common.codec.container import decode_stream, encoded_size, partition_hashes
from common.codec.params import delta_params
from common.errors import Rejected
from common.records import MAX_SAMPLE_RANGES, Manifest, SampleRange
from common.runlog.state import RunState
from common.spec import MAX_STEPS, RunSpec
from common.store.port import ObjectMissing, ObjectStore
from common.units import RoundId
from validator.outages import only_facts


@dataclass(frozen=True)
class Finding:
    """Outcome of a check: no code means that all is well."""

    code: str = ""
    reason: str = "as announced"

    @property
    def ok(self) -> bool:
        return not self.code


def check_claims(spec: RunSpec, manifest: Manifest, count: int) -> Finding:
    """What a manifest says, against the spec: size, steps, samples and tokens must fit together."""
    size = encoded_size(count, delta_params(spec.codec, manifest.base_revision))
    if manifest.delta.size_bytes != size:
        return Finding("wrong_size", f"{manifest.delta.size_bytes} bytes announced; a delta of this round has {size}")
    if manifest.tokens < 1 or not 1 <= manifest.steps <= MAX_STEPS:
        return Finding("bad_manifest", f"a submission brings at least one token, in 1 to {MAX_STEPS} steps")
    samples = manifest.steps * spec.inner.batch_size
    if manifest.sample_count > samples or manifest.tokens > manifest.sample_count * spec.data.seq_len:
        return Finding(
            "bad_manifest",
            f"{manifest.tokens} tokens of {manifest.sample_count} samples do not fit "
            f"{manifest.steps} steps of {spec.inner.batch_size} × {spec.data.seq_len}",
        )
    return Finding()


def check_streams(run: RunState, manifest: Manifest) -> Finding:
    """Whether the samples come from streams that exist, in the order of training, and none twice.

    A stream belongs to a round on its base: of the manifest's own base, or of one before it, since training goes on
    through a merge.
    """
    ends: dict[tuple[int, int], int] = {}
    last = (-1, -1)
    for part in manifest.samples:
        stream = (part.base_revision, part.round)
        if not _was_open(run, manifest, part):
            return Finding("bad_samples", f"there was no round {part.round} on revision {part.base_revision}")
        if stream < last or part.start < ends.get(stream, 0):
            return Finding("bad_samples", "samples are named in the order of training, and none is named twice")
        ends[stream], last = part.start + part.count, stream
    return Finding()


def _was_open(run: RunState, manifest: Manifest, part: SampleRange) -> bool:
    """Walks back from the manifest's base, no further than a manifest can name streams."""
    node, ended = run.revisions[manifest.base_revision], manifest.round
    for _ in range(MAX_SAMPLE_RANGES):
        made = RoundId(-1) if node.round is None else node.round
        if node.revision == part.base_revision:
            return made < part.round <= ended
        if node.parent is None:
            return False
        node, ended = run.revisions[node.parent], made
    return False


def read_delta(store: ObjectStore, manifest: Manifest) -> bytes | Finding:
    """The object at the announced key, or what is wrong with it before its bytes are looked at."""
    try:
        with only_facts():
            return store.get(manifest.key, max_bytes=manifest.delta.size_bytes).body
    except ObjectMissing:
        return Finding("not_uploaded", "there is no object at the announced key")
    except Rejected as refusal:
        return Finding("wrong_size", refusal.message[:200])


def check_bytes(body: bytes, spec: RunSpec, manifest: Manifest, count: int) -> Finding:
    """Compare the bytes with the manifest; ``count`` is the number of values of the shard."""
    if len(body) != manifest.delta.size_bytes:
        return Finding("wrong_size", f"{len(body)} bytes, announced {manifest.delta.size_bytes}")
    if hashlib.sha256(body).hexdigest() != manifest.delta.sha256:
        return Finding("checksum_mismatch", "the object's bytes are not the announced ones")
    params = delta_params(spec.codec, manifest.base_revision)
    try:
        check_container(body, expect=params, count=count)
        for _ in decode_stream(body, expect=params, count=count):
            pass  # decoding proves it; a piece at a time, since many are checked beside a merge
    except Rejected as refusal:
        return Finding(refusal.code, refusal.message[:200])
    if partition_hashes(body, count, params, spec.reduce.partitions) != manifest.partitions:
        return Finding("bad_partitions", "the hashes of the partitions are not those of the bytes")
    return Finding()
