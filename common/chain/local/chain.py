"""The chain itself: block numbers and hashes, the state at each, and the making of the next block.

A block that changes something is durable before the head moves to it and before anyone hears of it. Empty blocks
exist by the clock alone. The hash of block n commits to the genesis, to n and to every changed block up to n, and
carries n in its last 8 bytes, so that a hash can be resolved without a table of all empty blocks.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Any

from loguru import logger

from common.chain.local.dispatch import Context, DispatchFailed, dispatch
from common.chain.local.epoch import run_due_epochs
from common.chain.local.extrinsic import Extrinsic, timestamp_inherent
from common.chain.local.journal import BlockRecord
from common.chain.local.pallets import admin, balances, commitments, registration, serving, staking, weights
from common.chain.local.runtime import ChainRuntime
from common.chain.local.state import MutableState, State
from common.chain.local.storage import HORIZON_BLOCKS, Overlay, Storage, View

PALLETS = (admin, balances, commitments, registration, serving, staking, weights)  # importing them registers them
DIGEST_BYTES = 24
NO_INFO = {"weight": {"ref_time": 0, "proof_size": 0}, "class": "Normal", "pays_fee": "No"}
NO_EVENTS = b"\x00"


class Chain:
    """All that is known of past blocks, and the state at the head."""

    def __init__(
        self,
        runtime: ChainRuntime,
        genesis_hash: bytes,
        records: Iterable[BlockRecord],
        timestamp_ms: Callable[[int], int],
    ) -> None:
        self.runtime = runtime
        self.genesis_hash = genesis_hash
        self.timestamp_ms = timestamp_ms
        self.storage = Storage()
        self.head = 0
        self._changed: list[int] = []  # numbers of the changed blocks, ascending
        self._blocks: dict[int, BlockRecord] = {}
        self._computed = {runtime.key("System", item): item for item in ("Number", "Events", "ParentHash")}
        self._computed[runtime.key("Timestamp", "Now")] = "Now"
        for record in records:
            self.adopt(record)

    # -- blocks ----------------------------------------------------------------------------------------------

    def block_hash(self, number: int) -> bytes | None:
        """The hash of a block up to the head; None when the block is unknown or forgotten."""
        if number == 0:
            return self.genesis_hash
        index = bisect_right(self._changed, number) - 1
        if not 0 < number <= self.head or index < 0:
            return None
        tip = self._blocks[self._changed[index]].digest
        digest = blake2b(self.genesis_hash + tip + number.to_bytes(8, "big"), digest_size=DIGEST_BYTES).digest()
        return digest + number.to_bytes(8, "big")

    def number_of(self, block_hash: bytes) -> int | None:
        """The block with this hash, or None."""
        if block_hash == self.genesis_hash:
            return 0
        number = int.from_bytes(block_hash[-8:], "big")
        return number if len(block_hash) == 32 and self.block_hash(number) == block_hash else None

    def header(self, number: int) -> dict[str, Any]:
        """The header of a known block, as JSON-RPC has it."""
        parent = self.block_hash(number - 1) if number else None
        state_root = blake2b(self.block_hash(number) or b"", digest_size=32, person=b"state").hexdigest()
        return {
            "parentHash": "0x" + (parent or bytes(32)).hex(),
            "number": hex(number),
            "stateRoot": "0x" + state_root,
            "extrinsicsRoot": "0x" + blake2b(b"".join(self.body(number)), digest_size=32).hexdigest(),
            "digest": {"logs": []},
        }

    def body(self, number: int) -> list[bytes]:
        """The block's extrinsics, the timestamp first."""
        record = self._blocks.get(number)
        return [timestamp_inherent(self.runtime, self.timestamp_ms(number)), *(record.extrinsics if record else ())]

    # -- state -----------------------------------------------------------------------------------------------

    def read(self, key: bytes, number: int) -> bytes | None:
        """A raw storage value at a block."""
        item = self._computed.get(key)
        return self._compute(item, number) if item else self.storage.read_at(key, number)

    def state(self, number: int | None = None) -> State:
        """The typed state at a block; the head by default."""
        block = self.head if number is None else number
        return State(self.runtime, View(self.storage, block), block)

    def is_discarded(self, number: int) -> bool:
        """Whether the block's state can no longer be read."""
        return number < self.head - HORIZON_BLOCKS

    def _compute(self, item: str, number: int) -> bytes:
        if item == "Number":
            return number.to_bytes(4, "little")
        if item == "Now":
            return self.timestamp_ms(number).to_bytes(8, "little")
        if item == "ParentHash":
            return self.block_hash(number - 1) or bytes(32)
        record = self._blocks.get(number)
        return record.events if record else NO_EVENTS

    # -- making blocks ---------------------------------------------------------------------------------------

    def build(self, number: int, extrinsics: list[Extrinsic]) -> BlockRecord | None:
        """Execute ``extrinsics`` and due epochs as block ``number``; None when nothing changes. Adopts nothing."""
        overlay = Overlay(self.storage)
        state = MutableState(self.runtime, overlay, number)
        events: list[dict[str, Any]] = []
        for index, extrinsic in enumerate(extrinsics, start=1):
            events += _records(index, self._apply(state, extrinsic))
        run_due_epochs(state)
        if not overlay.changes:
            return None
        data = tuple(extrinsic.data for extrinsic in extrinsics)
        parent = self._blocks[self._changed[-1]].digest
        written = [key + b"=" + (value if value is not None else b"") for key, value in sorted(overlay.changes.items())]
        digest = blake2b(b"|".join([parent, number.to_bytes(8, "big"), *data, *written]), digest_size=DIGEST_BYTES)
        encoded = self.runtime.encode(self.runtime.events_type, events)
        return BlockRecord(number, digest.digest(), data, encoded, overlay.changes)

    def _apply(self, state: MutableState, extrinsic: Extrinsic) -> list[tuple[str, str, Any]]:
        """Use up the nonce, run the call, and say how it went."""
        account = state.get("System.Account", extrinsic.account)
        state.put("System.Account", extrinsic.account, value={**account, "nonce": extrinsic.nonce + 1})
        context = Context(state, extrinsic.account)
        try:
            dispatch(context, extrinsic.call)
        except DispatchFailed as failure:
            return _failed(failure.error)
        except Exception:  # noqa: BLE001 - the edge to what strangers send: one call must not end the chain
            logger.exception("a call failed: {}", str(extrinsic.call)[:300])
            return _failed("Other")
        return [*context.events, ("System", "ExtrinsicSuccess", {"dispatch_info": NO_INFO})]

    def adopt(self, record: BlockRecord) -> None:
        """Make a durable block part of the chain and move the head to it."""
        self.storage.commit(record.number, record.changes)
        self._blocks[record.number] = record
        self._changed.append(record.number)
        self.head = record.number
        while len(self._changed) > 1 and self._changed[1] < self.head - HORIZON_BLOCKS:
            del self._blocks[self._changed.pop(0)]

    def advance(self, number: int) -> None:
        """Move the head over blocks in which nothing happened."""
        self.head = max(self.head, number)


def _failed(error: Any) -> list[tuple[str, str, Any]]:
    return [("System", "ExtrinsicFailed", {"dispatch_error": error, "dispatch_info": NO_INFO})]


def _records(index: int, events: list[tuple[str, str, Any]]) -> list[dict[str, Any]]:
    phase = {"ApplyExtrinsic": index}
    return [{"phase": phase, "event": {pallet: {name: value}}, "topics": []} for pallet, name, value in events]
