"""A partition's mean is, bit for bit, that slice of the whole mean; bytes that are no delta's range are refused."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.codec.container import (
    HEADER_BYTES,
    chunks_of,
    decode,
    decode_range,
    encode,
    encoded_size,
    partition_chunks,
    partition_hashes,
    partition_ranges,
    read_header,
)
from common.codec.params import CHUNK, F32, CodecParams, delta_params
from common.errors import Rejected
from common.merge.mean import MeanAccumulator
from common.merge.outer import OuterState
from common.merge.partition import PartitionReducer, byte_range, inputs_sha256, slice_of, slices_of
from common.runlog.recompute import accepted_members, divisor, merge_mean
from common.spec import ReduceSpec
from tests.codec.strategies import params, vector, vectors
from tests.merge.golden_inputs import noise
from tests.merge.golden_round import (
    CODECS,
    SHARD,
    WEIGHTS_BEFORE,
    merged,
    momentum_before,
    plan_and_deltas,
    spec_of,
)
from tests.merge.test_butterfly import LIE

CODES = ("bad_magic", "bad_header", "wrong_size", "wrong_schema", "bad_indices", "bad_magnitude", "non_finite",
         "non_canonical")  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(vectors, params, st.integers(1, 9))
def test_the_ranges_of_a_delta_decode_to_its_slices(values: F32, codec: CodecParams, partitions: int) -> None:
    data, count = encode(values, codec), len(values)
    whole, scale = decode(data, expect=codec, count=count), read_header(data[:HEADER_BYTES], expect=codec, count=count)
    ranges = partition_ranges(count, codec, partitions)
    for chunks, (start, end) in zip(partition_chunks(count, partitions), ranges, strict=True):
        part = decode_range(data[start:end], scale, expect=codec, count=count, chunks=chunks)
        assert part.tobytes() == whole[chunks[0] * CHUNK : chunks[1] * CHUNK].tobytes()


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 40 * CHUNK), params, st.integers(1, 50))
def test_one_partition_alone_lies_where_all_of_them_have_it(count: int, codec: CodecParams, partitions: int) -> None:
    spec = dataclasses.replace(
        spec_of(next(iter(CODECS)), "nesterov"), reduce=ReduceSpec("butterfly", partitions, 2, 0)
    )
    at = range(partitions)
    assert [byte_range(spec, codec, count, one) for one in at] == partition_ranges(count, codec, partitions)
    assert tuple(slice_of(spec, count, one) for one in at) == slices_of(spec, count)


def test_of_more_partitions_than_memory_could_hold_one_is_told() -> None:
    """A leader asks for every member and partition: no table of all partitions is made for each."""
    assert chunks_of(7 * CHUNK, 10**15, 10**15 - 1) == (6, 7)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32 - 1), params, st.integers(-70_000, 70_000), st.booleans(), st.integers(-1, 1))
def test_any_bytes_decode_to_finite_values_or_are_refused(
    seed: int, codec: CodecParams, scale: int, low: bool, off: int
) -> None:
    count, rng = 9000, np.random.default_rng(seed)
    size = encoded_size(count, codec) - encoded_size(CHUNK, codec)
    body = rng.integers(0, 4 if low else 256, size + off, dtype=np.uint8).tobytes()
    try:
        values = decode_range(body, scale, expect=codec, count=count, chunks=(1, 3))
    except Rejected as refusal:
        CODES.index(refusal.code)
        return
    assert len(values) == count - CHUNK
    assert np.isfinite(values).all()


@pytest.mark.parametrize("partitions", [1, 3, 7])
@pytest.mark.parametrize("codec", sorted(CODECS))
def test_a_mean_put_together_of_partitions_makes_the_same_revision(codec: str, partitions: int) -> None:
    spec = dataclasses.replace(spec_of(codec, "nesterov"), reduce=ReduceSpec("butterfly", partitions, 2, 0))
    plan, deltas = plan_and_deltas(spec)
    count = len(WEIGHTS_BEFORE)
    whole = MeanAccumulator(count)
    for member in accepted_members(plan, SHARD):
        params_of = delta_params(spec.codec, member.base_revision)
        whole.add(member.scale, decode(deltas[member.delta.sha256], expect=params_of, count=count))
    mean = np.empty(count, dtype=np.float32)
    for partition, where in enumerate(slices_of(spec, count)):
        reducer = PartitionReducer(spec, plan, SHARD, where)
        proof = []
        for member in reducer.members:
            data, params_of = deltas[member.delta.sha256], delta_params(spec.codec, member.base_revision)
            start, end = byte_range(spec, params_of, count, partition)
            reducer.add(data[:HEADER_BYTES], data[start:end])
            proof.append((data[:HEADER_BYTES], partition_hashes(data, count, params_of, partitions)[partition]))
        made = reducer.finish()
        assert made.inputs_sha256 == inputs_sha256(proof)
        assert len(made.body) == where.mean_bytes
        mean[slice(*where.values)] = np.frombuffer(made.body, dtype="<f4")
    assert mean.tobytes() == whole.finish(divisor(plan, accepted_members(plan, SHARD))).tobytes()
    found = merge_mean(spec, SHARD, plan, mean, WEIGHTS_BEFORE, OuterState(momentum_before(spec), noise(32)))
    assert (found.weights_sha256, found.update, found.outer_sha256) == _hashes(spec_of(codec, "nesterov"))


def test_what_was_read_is_proved_with_the_header() -> None:
    one = vector(1, 5000, "normal")
    codec = CodecParams("topk", 64, 8)
    header = encode(one, codec)[:HEADER_BYTES]
    assert inputs_sha256([(header, LIE)]) != inputs_sha256([(header[:-1] + b"\1", LIE)])


def _hashes(spec: object) -> tuple[object, object, object]:
    result = merged(spec)  # type: ignore[arg-type]  # a RunSpec
    return result.weights_sha256, result.update, result.outer_sha256
