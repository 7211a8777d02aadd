"""The SDK's decoded values as our types. Pure: it sees the values only, never the client."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from common.chain.port import Endpoint, Neuron
from common.units import Coldkey, Hotkey, Uid


def seconds(text: Any) -> float | None:
    """A Retry-After in seconds; None for none, and for what isn't a plain number."""
    match = re.fullmatch(r"\s*(\d{1,6}(?:\.\d{1,3})?)\s*", str(text)) if text is not None else None
    return float(match.group(1)) if match else None


def neuron(row: Any) -> Neuron:
    """A row of the SDK's metagraph."""
    return Neuron(
        uid=Uid(row.uid),
        hotkey=Hotkey(row.hotkey),
        coldkey=Coldkey(row.coldkey),
        registered_block=row.block_at_registration,
        validator_permit=row.validator_permit,
        active=row.active,
        stake_rao=row.total_stake.rao,
        incentive=row.incentive,
        last_update_block=row.last_update,
        endpoint=endpoint(row.axon),
    )


def endpoint(axon: str | None) -> Endpoint | None:
    """``ip:port`` or ``[ip]:port``."""
    if axon is None:
        return None
    ip, _, port = axon.rpartition(":")
    return Endpoint(ip.strip("[]"), int(port))


def raw_fields(record: Mapping[str, Any]) -> tuple[bytes, ...]:
    """The bytes of the Raw0 … Raw128 fields, in order."""
    fields: list[bytes] = []
    for field in record["info"]["fields"]:
        for kind, value in field.items() if isinstance(field, dict) else ():
            if re.fullmatch(r"Raw\d+", kind):
                fields.append(bytes.fromhex(value[2:]) if isinstance(value, str) else bytes(value))
    return tuple(fields)
