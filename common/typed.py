"""Frozen dataclasses to and from canonical JSON, directed by their type hints.

Total in both directions: every field must be there but those marked ``ADDED``, no other may be, and every value must
have its field's type.
Floats travel as float32 bits. Used for the run spec and for what the log's entries hold.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from common.canonical import Json, f32_from_hex, f32_hex
from common.errors import Rejected

T = TypeVar("T")

_Read = Callable[[Json], Any]


ADDED = {"added": True}
"""Metadata of a field that earlier versions do not write: it is None unless it says something, and then not written."""


def to_json(value: Any) -> Json:
    """The canonical JSON value of a dataclass, tuple, mapping or scalar."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return f32_hex(value)
    if isinstance(value, tuple | list):
        return [to_json(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    table: dict[str, Json] = {}
    kind: Any = type(value)
    for name, added in _written(kind):
        held = getattr(value, name)
        if held is not None or not added:
            table[name] = to_json(held)
    return table


def from_json(kind: type[T], value: Json, code: str) -> T:
    """Build ``kind`` from a JSON value. Raises ``Rejected(code)`` naming the first field that is wrong."""
    wanted: Any = kind
    try:
        built: T = _reader(wanted)(value)
    except _Wrong as wrong:
        raise Rejected(code, f"{kind.__name__}{wrong.where}{wrong.what}") from None
    return built


class _Wrong(Exception):
    """What a value lacks. Where it lies is put in front on the way up, so that good values cost no paths."""

    def __init__(self, what: str, where: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where

    def under(self, place: str) -> _Wrong:
        self.where = place + self.where
        return self


@lru_cache(maxsize=256)
def _written(kind: Any) -> tuple[tuple[str, bool], ...]:
    """Names of a dataclass's fields, and whether each was added later."""
    if not dataclasses.is_dataclass(kind):
        raise TypeError(f"{kind} has no canonical form")
    return tuple((field.name, bool(field.metadata.get("added"))) for field in dataclasses.fields(kind))


@lru_cache(maxsize=1024)
def _reader(kind: Any) -> _Read:
    """What reads values of a type; its hints are looked up once."""
    kind = getattr(kind, "__supertype__", kind)  # NewType
    origin = get_origin(kind)
    if dataclasses.is_dataclass(kind):
        return _dataclass_reader(kind)
    if origin is tuple:
        return _tuple_reader(_reader(get_args(kind)[0]))
    if origin is dict:
        return _dict_reader(_reader(get_args(kind)[1]))
    if origin is Literal:
        return _literal_reader(get_args(kind))
    if origin in (Union, types.UnionType):
        inner = _reader(next(arg for arg in get_args(kind) if arg is not type(None)))
        return lambda value: None if value is None else inner(value)
    if kind is float:
        return lambda value: f32_from_hex(_expect(value, str))
    return lambda value: _expect(value, kind)


def _tuple_reader(read_item: _Read) -> _Read:
    def read(value: Json) -> Any:
        items = []
        for i, item in enumerate(_expect(value, list)):
            try:
                items.append(read_item(item))
            except _Wrong as wrong:
                raise wrong.under(f"[{i}]") from None
        return tuple(items)

    return read


def _dict_reader(read_item: _Read) -> _Read:
    def read(value: Json) -> Any:
        table = {}
        for key, item in _expect(value, dict).items():
            try:
                table[key] = read_item(item)
            except _Wrong as wrong:
                raise wrong.under(f".{key}") from None
        return table

    return read


def _literal_reader(allowed: tuple[Any, ...]) -> _Read:
    def read(value: Json) -> Any:
        if value not in allowed or isinstance(value, bool):
            raise _Wrong(f" must be one of {', '.join(map(str, allowed))}")
        return value

    return read


def _dataclass_reader(kind: Any) -> _Read:
    hints = typing.get_type_hints(kind)
    reads = sorted((name, _reader(hints[name])) for name, _ in _written(kind))
    known = {name for name, _ in reads}
    needed = known - {name for name, added in _written(kind) if added}

    def read(value: Json) -> Any:
        table = _expect(value, dict)
        for missing in sorted(needed - table.keys()):
            raise _Wrong(f".{missing} is missing")
        for extra in sorted(table.keys() - known):
            raise _Wrong(f".{extra[:40]} is not known to this version; update brigade")
        fields = {}
        for name, read_field in reads:
            if name in table:
                try:
                    fields[name] = read_field(table[name])
                except _Wrong as wrong:
                    raise wrong.under(f".{name}") from None
        try:
            return kind(**fields)
        except ValueError as error:
            raise _Wrong(f": {error}") from None

    return read


def _expect(value: Json, kind: Any) -> Any:
    if type(value) is kind:
        return value
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise _Wrong(f" must be {kind.__name__}, not {type(value).__name__}")
    return value
