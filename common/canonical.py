"""Canonical JSON: the one byte string of a value, and a total, bounded reader that accepts nothing else.

The subset of RFC 8785 without floats: objects with ASCII keys, lists, strings, integers within ±(2^53 − 1), booleans
and null. A float32 travels as the eight hex digits of its bits (``f32_hex``). Invariant:
``loads(data)`` returns only if ``dumps(loads(data)) == data``, so that one flipped byte anywhere is noticed.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Collection
from typing import NoReturn

from common.errors import Rejected
from common.units import is_hex

Json = dict[str, "Json"] | list["Json"] | str | int | bool | None

MAX_INTEGER = 2**53 - 1
MAX_DEPTH = 32
DEFAULT_MAX_BYTES = 1 << 20


def dumps(value: Json) -> bytes:
    """The canonical UTF-8 bytes of ``value``. Raises ValueError for what the subset does not hold."""
    _check(value, 0)
    return _encode(value).encode("utf-8")


def loads(data: bytes, max_bytes: int = DEFAULT_MAX_BYTES) -> Json:
    """Parse canonical bytes. Raises ``Rejected('bad_json')`` for anything else, whatever the bytes are."""
    if len(data) > max_bytes:
        raise Rejected("bad_json", f"{len(data)} bytes where at most {max_bytes} are allowed")
    try:
        value: Json = _decode(data.decode("utf-8"))
        again = dumps(value)
    except (ValueError, RecursionError) as error:
        raise Rejected("bad_json", f"not canonical JSON: {str(error)[:120]}") from None
    if again != data:
        raise Rejected("bad_json", "JSON is not in its canonical form")
    return value


def loads_object(data: bytes, max_bytes: int = DEFAULT_MAX_BYTES) -> dict[str, Json]:
    """Like ``loads``, for bytes that must hold an object."""
    value = loads(data, max_bytes)
    if not isinstance(value, dict):
        raise Rejected("bad_json", "expected a JSON object")
    return value


def f32_hex(value: float) -> str:
    """The float32 nearest to ``value`` as the hex of its bits, most significant first."""
    return struct.pack(">f", value).hex()


def f32_from_hex(text: str) -> float:
    """Inverse of ``f32_hex``. Raises ``Rejected('bad_float')`` for other texts and for NaN or infinity."""
    if not is_hex(text, 8):
        raise Rejected("bad_float", "a float32 is written as eight lowercase hex digits")
    value: float = struct.unpack(">f", bytes.fromhex(text))[0]
    if value != value or value in (float("inf"), float("-inf")):
        raise Rejected("bad_float", "a float32 must be finite")
    return value


def _check(value: Json, depth: int) -> None:
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str) or not key.isascii():
                raise ValueError("keys must be ASCII strings")
        items: Collection[Json] = value.values()
    elif isinstance(value, list):
        items = value
    else:
        items = (value,)
        depth -= 1
    if items and depth >= MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH}")
    for item in items:
        if isinstance(item, str) or item is None or item is True or item is False:
            continue
        if isinstance(item, int):
            if abs(item) > MAX_INTEGER:
                raise ValueError("integer beyond 2^53 - 1")
        elif isinstance(item, dict | list):
            _check(item, depth + 1)
        else:
            raise ValueError(f"{type(item).__name__} has no canonical form")


def _parse_int(text: str) -> int:
    if len(text) > 17:
        raise ValueError("integer beyond 2^53 - 1")
    return int(text)


def _refuse_number(text: str) -> NoReturn:
    raise ValueError(f"{text[:32]} is not an integer")


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True, allow_nan=False).encode
_decode = json.JSONDecoder(parse_float=_refuse_number, parse_constant=_refuse_number, parse_int=_parse_int).decode
