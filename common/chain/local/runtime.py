"""The runtime's codec: storage keys and values, calls, events, errors and API results, all by the real metadata.

A thin layer over ``bittensor_core.Runtime`` that speaks of pallets and items by name and fills in zeros: ``blank``
gives the zero value of any type, so that a handler states only the fields that it knows.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import bittensor_core

from common.chain.local.metadata import RuntimeMetadata

PRIMITIVE_BYTES = {"bool": 1, "char": 4, **{f"{s}{n}": n // 8 for s in "ui" for n in (8, 16, 32, 64, 128, 256)}}


@dataclass(frozen=True)
class ApiMethod:
    """One runtime API method's types, as ``scale_info::N`` strings."""

    inputs: tuple[str, ...]
    output: str


class ChainRuntime:
    """Encode and decode everything that this runtime version defines. Raises ``KeyError`` for unknown names."""

    def __init__(self, metadata: RuntimeMetadata) -> None:
        self.metadata = metadata
        self.core = bittensor_core.Runtime(
            metadata.v15, metadata.spec_version, metadata.transaction_version, metadata.ss58_format
        )
        self.entry = lru_cache(maxsize=None)(self.core.storage_entry)
        self.blank_bytes = lru_cache(maxsize=None)(self._blank_bytes)

    # -- storage ---------------------------------------------------------------------------------------------

    def key(self, pallet: str, item: str, params: tuple[Any, ...] = ()) -> bytes:
        """The storage key; fewer params than the map has give a prefix."""
        return bytes(self.core.storage_key(pallet, item, list(params)))

    def encode_item(self, pallet: str, item: str, value: Any) -> bytes:
        """A storage value's bytes."""
        return bytes(self.core.encode(self.entry(pallet, item).value_type, value))

    def decode_item(self, pallet: str, item: str, raw: bytes | None) -> Any:
        """A storage value; a missing one is the item's default, or None where the item is optional."""
        entry = self.entry(pallet, item)
        if raw is not None:
            return self.core.decode(entry.value_type, raw)
        if entry.modifier == "Optional":
            return None
        return self.core.decode(entry.value_type, bytes(entry.default_bytes))

    # -- types -----------------------------------------------------------------------------------------------

    def encode(self, type_string: str, value: Any) -> bytes:
        """SCALE-encode ``value``."""
        return bytes(self.core.encode(type_string, value))

    def decode(self, type_string: str, data: bytes) -> Any:
        """Decode all of ``data``; ``ValueError`` when it isn't exactly one value of the type."""
        return self.core.decode(type_string, data)

    def blank(self, type_string: str) -> Any:
        """The zero value: zero numbers, empty lists, None options, first variants."""
        return self.decode(type_string, self.blank_bytes(_type_id(type_string)))

    def complete(self, type_string: str, value: Any) -> Any:
        """``value`` with the fields of structs that it leaves out filled with zeros, and unknown ones dropped."""
        kind, body = next(iter(self._types[_type_id(type_string)]["def"].items()))
        if isinstance(value, dict) and kind == "composite":
            names = {field["name"]: f"scale_info::{field['type']}" for field in body["fields"] if field.get("name")}
            return {
                name: self.complete(inner, value[name]) if name in value else self.blank(inner)
                for name, inner in names.items()
            }
        if isinstance(value, list) and kind == "sequence":
            return [self.complete(f"scale_info::{body['type']}", item) for item in value]
        if isinstance(value, tuple) and kind == "tuple":
            return tuple(self.complete(f"scale_info::{t}", v) for t, v in zip(body, value, strict=True))
        if value is not None and self._is_option(kind, body):
            return self.complete(f"scale_info::{body['variants'][1]['fields'][0]['type']}", value)
        return value

    @staticmethod
    def _is_option(kind: str, body: Any) -> bool:
        return kind == "variant" and [variant["name"] for variant in body.get("variants", [])] == ["None", "Some"]

    def decode_tuple(self, types: tuple[str, ...], data: bytes) -> tuple[Any, ...]:
        """Decode consecutive values that fill ``data``; ``ValueError`` when they don't."""
        values: list[Any] = []
        for type_string in types:
            value = self.core.decode(type_string, data, False)
            values.append(value)
            data = data[len(self.encode(type_string, value)) :]
        if data:
            raise ValueError(f"{len(data)} bytes too many")
        return tuple(values)

    def _blank_bytes(self, type_id: int) -> bytes:
        kind, body = next(iter(self._types[type_id]["def"].items()))
        if kind == "primitive":
            return bytes(PRIMITIVE_BYTES.get(body.lower(), 1))  # a string is an empty list: one zero byte
        if kind in ("sequence", "compact", "bitsequence"):
            return b"\x00"
        if kind == "array":
            return self.blank_bytes(body["type"]) * int(body["len"])
        if kind == "variant":
            variants = sorted(body.get("variants", []), key=lambda variant: variant["index"])
            return bytes([variants[0]["index"]]) + self._blank_fields(variants[0]) if variants else b""
        return b"".join(self.blank_bytes(t) for t in body) if kind == "tuple" else self._blank_fields(body)

    def _blank_fields(self, body: dict[str, Any]) -> bytes:
        return b"".join(self.blank_bytes(field["type"]) for field in body.get("fields", []))

    @cached_property
    def _types(self) -> dict[int, dict[str, Any]]:
        return {entry["id"]: entry["type"] for entry in json.loads(self.core.registry_json())["types"]}

    # -- calls, errors, APIs ---------------------------------------------------------------------------------

    @cached_property
    def errors(self) -> dict[tuple[str, str], dict[str, Any]]:
        """``(pallet, error name)`` to the DispatchError value that names it."""
        return {
            (pallet["name"], error["name"]): {
                "Module": {"index": pallet["index"], "error": f"0x{error['index']:02x}000000"}
            }
            for pallet in self.core.metadata_ir()["pallets"]
            for error in pallet["errors"]
        }

    @cached_property
    def apis(self) -> dict[str, ApiMethod]:
        """``Api_method`` to its types."""
        return {
            f"{api}_{name}": ApiMethod(tuple(kind for _, kind in method["inputs"]), method["output"])
            for api, methods in self.core.runtime_api_map().items()
            for name, method in methods.items()
        }

    @cached_property
    def events_type(self) -> str:
        """The type of ``System.Events``."""
        return str(self.entry("System", "Events").value_type)


def _type_id(type_string: str) -> int:
    return int(type_string.removeprefix("scale_info::"))
