"""Frozen dataclasses to and from canonical JSON, directed by their type hints.

Total in both directions: every field must be there but those marked ``ADDED``, no other may be, and every value must
have its field's type.
Floats travel as float32 bits. Used for the run spec and for what the log's entries hold.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from common.canonical import Json, f32_from_hex, f32_hex
from common.errors import Rejected

T = TypeVar("T")


ADDED = {"added": True}
"""Metadata of a field that earlier versions do not write: it is None unless it says something, and then not written."""


def to_json(value: Any) -> Json:
    """The canonical JSON value of a dataclass, tuple, mapping or scalar."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = ((f, getattr(value, f.name)) for f in dataclasses.fields(value))
        return {f.name: to_json(held) for f, held in fields if held is not None or not f.metadata.get("added")}
    if isinstance(value, tuple | list):
        return [to_json(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, float):
        return f32_hex(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    raise TypeError(f"{type(value).__name__} has no canonical form")


def from_json(kind: type[T], value: Json, code: str) -> T:
    """Build ``kind`` from a JSON value. Raises ``Rejected(code)`` naming the first field that is wrong."""
    built: T = _build(kind, value, code, kind.__name__)
    return built


@lru_cache(maxsize=256)
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _build(kind: Any, value: Json, code: str, where: str) -> Any:
    kind = getattr(kind, "__supertype__", kind)  # NewType
    origin = get_origin(kind)
    if dataclasses.is_dataclass(kind):
        return _build_dataclass(kind, value, code, where)
    if origin is tuple:
        item_kind = get_args(kind)[0]
        items = _expect(value, list, code, where)
        return tuple(_build(item_kind, item, code, f"{where}[{i}]") for i, item in enumerate(items))
    if origin is dict:
        item_kind = get_args(kind)[1]
        table = _expect(value, dict, code, where)
        return {key: _build(item_kind, item, code, f"{where}.{key}") for key, item in table.items()}
    if origin is Literal:
        if value not in get_args(kind) or isinstance(value, bool):
            raise Rejected(code, f"{where} must be one of {', '.join(map(str, get_args(kind)))}")
        return value
    if origin in (Union, types.UnionType):
        inner = next(arg for arg in get_args(kind) if arg is not type(None))
        return None if value is None else _build(inner, value, code, where)
    if kind is float:
        return f32_from_hex(_expect(value, str, code, where))
    return _expect(value, kind, code, where)


def _build_dataclass(kind: Any, value: Json, code: str, where: str) -> Any:
    table = _expect(value, dict, code, where)
    hints = _hints(kind)
    names = {f.name for f in dataclasses.fields(kind)}
    names -= {f.name for f in dataclasses.fields(kind) if f.metadata.get("added") and f.name not in table}
    for missing in sorted(names - table.keys()):
        raise Rejected(code, f"{where}.{missing} is missing")
    for extra in sorted(table.keys() - names):
        raise Rejected(code, f"{where}.{extra[:40]} is not known to this version; update brigade")
    fields = {name: _build(hints[name], table[name], code, f"{where}.{name}") for name in sorted(names)}
    try:
        return kind(**fields)
    except ValueError as error:
        raise Rejected(code, f"{where}: {error}") from None


def _expect(value: Json, kind: Any, code: str, where: str) -> Any:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise Rejected(code, f"{where} must be {kind.__name__}, not {type(value).__name__}")
    return value
