"""Edit SCALE metadata in place: add a storage entry by cloning one that has the right shape.

Sources: the SCALE codec's compact integers and ``frame_metadata::v15::StorageEntryMetadata`` (name, modifier, type,
default, docs). Only the name and the default value change, so the clone is as valid as its original.
"""

from __future__ import annotations


def compact(value: int) -> bytes:
    """A SCALE compact integer below 2**30."""
    if value < 1 << 6:
        return bytes([value << 2])
    if value < 1 << 14:
        return (value << 2 | 1).to_bytes(2, "little")
    if value < 1 << 30:
        return (value << 2 | 2).to_bytes(4, "little")
    raise ValueError(f"{value} is too large")


def read_compact(data: bytes, at: int) -> tuple[int, int]:
    """The compact integer at ``at`` and the offset behind it."""
    size = (1, 2, 4)[data[at] & 3]
    return int.from_bytes(data[at : at + size], "little") >> 2, at + size


def opaque(data: bytes) -> bytes:
    """``Vec<u8>`` of ``data``."""
    return compact(len(data)) + data


def _text(value: str) -> bytes:
    return opaque(value.encode())


def clone_storage_entry(metadata: bytes, pallet: str, source: str, name: str, default: bytes) -> bytes:
    """``metadata`` with ``pallet``'s map ``source`` (one key) cloned as ``name``; ``ValueError`` if it isn't there."""
    head = _text(pallet) + b"\x01" + _text(pallet)
    count_at = metadata.index(head) + len(head)
    count, first = read_compact(metadata, count_at)
    start = metadata.index(_text(source), first)
    after_name = start + len(_text(source))
    after_type = _map_type_end(metadata, after_name + 1)
    length, _ = read_compact(metadata, after_type)
    if length != len(default):
        raise ValueError(f"{source} has a default of {length} bytes, not {len(default)}")
    clone = _text(name) + metadata[after_name:after_type] + opaque(default) + compact(0)
    return metadata[:count_at] + compact(count + 1) + metadata[first:start] + clone + metadata[start:]


def _map_type_end(metadata: bytes, at: int) -> int:
    if metadata[at] != 1:
        raise ValueError("the source entry is not a map")
    hashers, at = read_compact(metadata, at + 1)
    at += hashers
    for _ in range(2):  # key type, value type
        _, at = read_compact(metadata, at)
    return at
