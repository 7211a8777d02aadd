"""The chain port: what Brigade reads from and writes to a Bittensor subnet, in its own types.

Every method may raise ``Retryable`` (no connection, no answer in time, or a write whose fate is unknown: read the
chain before repeating it), ``Rejected`` (the chain refused; ``code`` is a stable word, the message holds the exact
pallet error) or ``Fatal`` (the chain speaks a version that this client can't). Nothing else escapes an adapter.

Writes return once the chain has included them in a block. The hotkey signs ``set_commitment``, ``serve`` and
``set_weights``; the coldkey signs the rest.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from common.errors import Rejected
from common.units import Coldkey, Hotkey, Uid

RAO_PER_TAO = 10**9
MAX_COMMITMENT_FIELDS = 3
MAX_COMMITMENT_FIELD_BYTES = 128


@dataclass(frozen=True)
class Endpoint:
    """Where a neuron serves. Written by a stranger: apply a policy before connecting to it."""

    ip: str
    port: int


@dataclass(frozen=True)
class Neuron:
    """One seat of the subnet at one block. ``(hotkey, registered_block)`` names it for ever; the uid is reused."""

    uid: Uid
    hotkey: Hotkey
    coldkey: Coldkey
    registered_block: int
    validator_permit: bool
    active: bool
    stake_rao: int
    incentive: float  # 0..1, sums to 1 over the subnet
    last_update_block: int
    endpoint: Endpoint | None


@dataclass(frozen=True)
class Metagraph:
    """All seats of a subnet, ordered by uid, read at one block."""

    netuid: int
    block: int
    neurons: tuple[Neuron, ...]

    @cached_property
    def _by_hotkey(self) -> dict[Hotkey, Neuron]:
        return {neuron.hotkey: neuron for neuron in self.neurons}

    def by_hotkey(self, hotkey: Hotkey) -> Neuron | None:
        """The seat of ``hotkey``, or None when it isn't registered."""
        return self._by_hotkey.get(hotkey)


@dataclass(frozen=True)
class Hyperparameters:
    """The subnet's settings that Brigade obeys."""

    tempo: int
    weights_rate_limit_blocks: int
    version_key: int
    min_allowed_weights: int
    max_weight_u16: int
    commit_reveal: bool


class ChainPort(Protocol):
    """One connection to a chain, with or without keys to sign."""

    async def block(self) -> int:
        """The number of the newest block."""
        ...

    async def block_time_s(self) -> float:
        """When the newest block was made, by its own stamp, in seconds since the epoch; it is up to a block old."""
        ...

    async def finalized_hash(self, number: int) -> str | None:
        """The hash of block ``number``, ``0x`` and 64 hex digits; None while it is not finalized."""
        ...

    async def genesis_hash(self) -> str:
        """``0x`` and 64 hex digits; names the chain."""
        ...

    async def metagraph(self, netuid: int) -> Metagraph:
        """All seats. ``Rejected('subnet_not_exists')`` when there is no such subnet."""
        ...

    async def subnet_owner_hotkey(self, netuid: int) -> Hotkey:
        """The hotkey whose commitment locates the run."""
        ...

    async def hyperparameters(self, netuid: int) -> Hyperparameters:
        """The subnet's settings."""
        ...

    async def commitment(self, netuid: int, hotkey: Hotkey) -> tuple[bytes, ...] | None:
        """The Raw fields that ``hotkey`` published, exact bytes, or None. Fields of other kinds are left out."""
        ...

    async def weights(self, netuid: int) -> dict[Uid, dict[Uid, int]]:
        """Every validator's weights as u16, exactly as the chain holds them."""
        ...

    async def blocks_since_epoch(self, netuid: int) -> int:
        """Blocks since the subnet's last epoch ran."""
        ...

    async def next_epoch_block(self, netuid: int) -> int:
        """The block in which the next epoch is expected."""
        ...

    async def wait_for_block(self, number: int, timeout_s: float) -> int:
        """Return the newest block's number once it is ``number`` or later; ``Retryable`` after ``timeout_s``."""
        ...

    async def balance_rao(self, coldkey: Coldkey) -> int:
        """Free balance."""
        ...

    async def close(self) -> None:
        """Let go of the connection. Idempotent."""
        ...

    async def set_commitment(self, netuid: int, fields: Sequence[bytes]) -> None:
        """Publish 1 to 3 fields of at most 128 bytes each; they replace the earlier ones."""
        ...

    async def serve(self, netuid: int, endpoint: Endpoint) -> None:
        """Publish where we serve. 127.0.0.1 is refused by the chain, 127.0.0.2 is not."""
        ...

    async def set_weights(self, netuid: int, weights: Mapping[Uid, int], version_key: int) -> None:
        """Put these u16 on chain as they are (largest 65535, none 0: see ``weights.to_u16``)."""
        ...

    async def register_subnet(self) -> int:
        """Create a subnet owned by our coldkey, with our hotkey as its owner hotkey and uid 0. Returns the netuid."""
        ...

    async def start_subnet(self, netuid: int) -> None:
        """Open the subnet for stake."""
        ...

    async def register(self, netuid: int) -> None:
        """Register our hotkey by burning the registration price."""
        ...

    async def add_stake(self, netuid: int, hotkey: Hotkey, amount_tao: float) -> None:
        """Stake on ``hotkey``."""
        ...

    async def transfer(self, dest: Coldkey, amount_tao: float) -> None:
        """Send TAO."""
        ...

    async def set_hyperparameters(
        self,
        netuid: int,
        *,
        tempo: int | None = None,
        weights_rate_limit_blocks: int | None = None,
        commit_reveal: bool | None = None,
        serving_rate_limit_blocks: int | None = None,
        stake_threshold_rao: int | None = None,
    ) -> None:
        """Set what is given, all or nothing, as sudo. Only for chains whose sudo key we hold."""
        ...


def rao(amount_tao: float) -> int:
    """TAO to rao, rounded. Raises ``ValueError`` for what isn't a positive finite amount."""
    if not 0 < amount_tao < 2**63 / RAO_PER_TAO:
        raise ValueError(f"an amount of TAO must be positive, not {amount_tao}")
    return round(amount_tao * RAO_PER_TAO)


def check_endpoint(endpoint: Endpoint) -> None:
    """``Rejected('invalid_argument')`` for what can't be published on any chain."""
    try:
        ipaddress.ip_address(endpoint.ip)
    except ValueError:
        raise Rejected("invalid_argument", f"{endpoint.ip!r} is not an IP address") from None
    if not 0 < endpoint.port < 1 << 16:
        raise Rejected("invalid_argument", f"InvalidPort: {endpoint.port}")
