"""The safetensors format for what Brigade stores: float32 tensors, one after the other, in a given order.

A file is the header's length (8 bytes, little-endian), a JSON header, and the tensors' bytes without gaps
(https://huggingface.co/docs/safetensors). Invariant: names and shapes fix the header byte for byte, so equal tensors
make equal files, and a reader that knows what to expect compares bytes instead of parsing a stranger's JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from common.model.layout import Shape

LENGTH_BYTES = 8
ALIGNMENT = 8


def header_bytes(shapes: Mapping[str, Shape]) -> bytes:
    """Length and header of a file that holds these float32 tensors in the mapping's order, padded with spaces."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    start = 0
    for name, shape in shapes.items():
        end = start + size_bytes(shape)
        entries[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(entries, separators=(",", ":")).encode("ascii")
    text += b" " * (-len(text) % ALIGNMENT)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text


def size_bytes(shape: Shape) -> int:
    """Bytes of a float32 tensor."""
    count = 1
    for side in shape:
        count *= side
    return 4 * count
