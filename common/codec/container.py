"""The bytes of a delta or an update: a 32-byte header and one record per chunk.

Header, little-endian: magic ``BRGD``, version u16, codec u8, magnitude bits u8, value count u64, chunk u32,
density u32, scale i16, six zero bytes. The reader knows all of it but the scale from the run spec and refuses
anything else, so the size is checked before the body is looked at and memory is bounded by the reader's own count.

Invariants: ``decode`` is total (``Rejected`` or finite values); no two objects that it accepts hold the same values
(the dense codec's minus zero apart); both directions are bit for bit the same on every machine, which lets followers
compare updates by hash.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np

from common.codec.dense import VALUE_BYTES, decode_dense, encode_dense
from common.codec.params import CHUNK, F32, U8, CodecParams, chunk_count
from common.codec.quant import MAX_SCALE, MIN_SCALE, is_based
from common.codec.topk import decode_records, encode_records, record_layout
from common.errors import Rejected
from common.units import Sha256, sha256_hex

HEADER_BYTES = 32
_HEADER = struct.Struct("<4sHBBQIIh6s")
_MAGIC, _VERSION = b"BRGD", 1
_KINDS = {"topk": 1, "bf16": 2}
_ZEROS = bytes(6)
_STREAM_CHUNKS = 256


def record_bytes(params: CodecParams) -> int:
    """Bytes of one full chunk."""
    return record_layout(params).size_bytes if params.kind == "topk" else VALUE_BYTES * CHUNK


def encoded_size(count: int, params: CodecParams) -> int:
    """Exact bytes of a vector of ``count`` values."""
    body = chunk_count(count) * record_bytes(params) if params.kind == "topk" else VALUE_BYTES * count
    return HEADER_BYTES + body


def partition_chunks(count: int, num_partitions: int) -> list[tuple[int, int]]:
    """Chunk ranges [start, end) of the partitions, as even as possible; some are empty if chunks are too few."""
    if num_partitions < 1:
        raise ValueError(f"num_partitions must be at least 1, not {num_partitions}")
    return [chunks_of(count, num_partitions, partition) for partition in range(num_partitions)]


def chunks_of(count: int, num_partitions: int, partition: int) -> tuple[int, int]:
    """One of ``partition_chunks``, without making all of them."""
    chunks = chunk_count(count)
    return partition * chunks // num_partitions, (partition + 1) * chunks // num_partitions


def partition_ranges(count: int, params: CodecParams, num_partitions: int) -> list[tuple[int, int]]:
    """Byte ranges [start, end) of the partitions in an encoded vector: whole records, the header left out."""
    return [range_of(count, params, chunks) for chunks in partition_chunks(count, num_partitions)]


def range_of(count: int, params: CodecParams, chunks: tuple[int, int]) -> tuple[int, int]:
    """Bytes [start, end) of the chunks [start, end) in an encoded vector of ``count`` values."""
    size, end = record_bytes(params), encoded_size(count, params)
    return min(HEADER_BYTES + chunks[0] * size, end), min(HEADER_BYTES + chunks[1] * size, end)


def partition_hashes(
    data: bytes | memoryview, count: int, params: CodecParams, num_partitions: int
) -> tuple[Sha256, ...]:
    """SHA-256 of each partition's byte range of an encoded vector: what a manifest names."""
    view = memoryview(data)
    return tuple(sha256_hex(view[start:end]) for start, end in partition_ranges(count, params, num_partitions))


def encode(values: F32, params: CodecParams) -> bytes:
    """The encoding of a one-dimensional float32 vector. Raises ``ValueError`` if it is not finite."""
    if values.ndim != 1 or values.dtype != np.float32:
        raise ValueError(f"encode takes a float32 vector, not {values.dtype} of shape {values.shape}")
    values = np.ascontiguousarray(values)
    if not _finite(values):
        raise ValueError("the vector holds infinite values or NaN; nothing was encoded")
    if params.kind == "bf16":
        return header(len(values), params, 0) + encode_dense(values)
    records, scales = encode_records(values[None], record_layout(params))
    return header(len(values), params, int(scales[0])) + records.tobytes()


def decode(data: bytes | memoryview, *, expect: CodecParams, count: int) -> F32:
    """The ``count`` values of ``data``; raises ``Rejected`` unless all of it is valid under ``expect``."""
    out = np.empty(count, dtype=np.float32)
    for start, values in decode_stream(data, expect=expect, count=count):
        out[start : start + len(values)] = values
    return out


def decode_stream(data: bytes | memoryview, *, expect: CodecParams, count: int) -> Iterator[tuple[int, F32]]:
    """Like ``decode``, in pieces ``(first value's position, values)``; memory is bounded by one piece."""
    scale = check(data, expect=expect, count=count)
    size, chunks = record_bytes(expect), chunk_count(count)
    for first in range(0, chunks, _STREAM_CHUNKS):
        last = min(first + _STREAM_CHUNKS, chunks)
        body = memoryview(data)[HEADER_BYTES + first * size : HEADER_BYTES + last * size]
        yield first * CHUNK, _decode_body(body, expect, count, first, scale)


def decode_range(
    records: bytes | memoryview, scale: int, *, expect: CodecParams, count: int, chunks: tuple[int, int]
) -> F32:
    """The values of the chunks [start, end) of a vector of ``count``, from just their bytes and the header's scale.

    For one who reads a part of an object: what only the whole can tell (``check``) is left to those who read it all.
    Raises ``Rejected``.
    """
    first, last = chunks
    start, end = range_of(count, expect, chunks)
    if len(records) != end - start:
        raise Rejected("wrong_size", f"{len(records)} bytes; the chunks {first} to {last} take {end - start}")
    if not _scale_allowed(scale, expect):
        raise Rejected("bad_header", f"the scale {scale} is not allowed here")
    out = np.empty(max(0, min(last * CHUNK, count) - first * CHUNK), dtype=np.float32)
    size = record_bytes(expect)
    for at in range(first, last, _STREAM_CHUNKS):
        own = slice((at - first) * size, (min(at + _STREAM_CHUNKS, last) - first) * size)
        values = _decode_body(memoryview(records)[own], expect, count, at, scale)
        out[(at - first) * CHUNK :][: len(values)] = values
    return out


def check(data: bytes | memoryview, *, expect: CodecParams, count: int) -> int:
    """Checks header, size and scale of a whole object without decoding it; gives the scale, raises ``Rejected``."""
    size = encoded_size(count, expect)
    if len(data) != size:
        raise Rejected("wrong_size", f"{len(data)} bytes; {count} values in this run's codec take {size}")
    scale = read_header(data[:HEADER_BYTES], expect=expect, count=count)
    if expect.kind == "topk" and expect.magnitude_bits == 8 and not is_based(_largest_code(data, expect), scale):
        raise Rejected("non_canonical", f"the scale {scale} is not the one that the magnitudes call for")
    return scale


def read_header(data: bytes | memoryview, *, expect: CodecParams, count: int) -> int:
    """The scale in a header that otherwise is exactly as the run prescribes; raises ``Rejected``."""
    if len(data) != HEADER_BYTES:
        raise Rejected("wrong_size", f"a header of {len(data)} bytes; it has {HEADER_BYTES}")
    magic, version, kind, magnitude_bits, values, chunk, density, scale, zeros = _HEADER.unpack(data)
    if magic != _MAGIC:
        raise Rejected("bad_magic", "not a Brigade delta")
    if version != _VERSION:
        raise Rejected("wrong_schema", f"delta format {version}; this program reads {_VERSION}: update brigade")
    found = (kind, magnitude_bits, density, chunk, values)
    wanted = (_KINDS[expect.kind], expect.magnitude_bits, expect.density, CHUNK, count)
    if found != wanted:
        raise Rejected("wrong_schema", f"codec, bits, density, chunk, count {found}; the run has {wanted}")
    if zeros != _ZEROS or not _scale_allowed(scale, expect):
        raise Rejected("bad_header", f"reserved bytes {zeros.hex()} and scale {scale} are not allowed here")
    return int(scale)


def _scale_allowed(scale: int, params: CodecParams) -> bool:
    if params.kind == "topk" and params.magnitude_bits == 8:
        return MIN_SCALE <= scale <= MAX_SCALE
    return scale == 0


def header(count: int, params: CodecParams, scale: int) -> bytes:
    """The header of a vector of ``count`` values."""
    kind = _KINDS[params.kind]
    return _HEADER.pack(_MAGIC, _VERSION, kind, params.magnitude_bits, count, CHUNK, params.density, scale, _ZEROS)


def _records(body: bytes | memoryview, params: CodecParams) -> U8:
    return np.frombuffer(body, dtype=np.uint8).reshape(-1, record_bytes(params))


def _largest_code(data: bytes | memoryview, params: CodecParams) -> int:
    return int(_records(memoryview(data)[HEADER_BYTES:], params)[:, :2].max(initial=0))


def _decode_body(body: bytes | memoryview, params: CodecParams, count: int, first_chunk: int, scale: int) -> F32:
    if params.kind == "bf16":
        return decode_dense(np.frombuffer(body, dtype=np.uint8))
    layout, scales = record_layout(params), np.array([scale], dtype=np.int64)
    values: F32 = decode_records(_records(body, params)[None], layout, scales, first_chunk, count)[0]
    return values


def _finite(values: F32) -> bool:
    return all(bool(np.isfinite(values[i : i + (1 << 20)]).all()) for i in range(0, len(values), 1 << 20))
