"""Typed access to the chain's state: items by name, values as plain Python, defaults from the metadata.

Items of ``SubtensorModule`` go by their bare name, others as ``Pallet.Item``. A few items are facts of the block
itself and are computed, never stored: they would change in every empty block.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from common.chain.local.runtime import ChainRuntime
from common.chain.local.storage import Overlay, Readable

HOME_PALLET = "SubtensorModule"


def split(item: str) -> tuple[str, str]:
    """``Tempo`` → ``("SubtensorModule", "Tempo")``; ``System.Account`` → ``("System", "Account")``."""
    pallet, _, name = item.rpartition(".")
    return pallet or HOME_PALLET, name


class State:
    """The state at one block, read only."""

    def __init__(self, runtime: ChainRuntime, source: Readable, block: int) -> None:
        self.runtime = runtime
        self.source = source
        self.block = block

    def get(self, item: str, *params: Any) -> Any:
        """The value, or the item's default (None for an optional item)."""
        pallet, name = split(item)
        return self.runtime.decode_item(pallet, name, self.source.read(self.runtime.key(pallet, name, params)))

    def netuids(self) -> Iterator[int]:
        """The numbers of all subnets, the root included."""
        found, netuid, total = 0, 0, self.get("TotalNetworks")
        while found < total:
            if self.get("NetworksAdded", netuid):
                found += 1
                yield netuid
            netuid += 1

    def uid_of(self, netuid: int, hotkey: str) -> int | None:
        """The seat of ``hotkey``, or None."""
        uid: int | None = self.get("Uids", netuid, hotkey)
        return uid

    def stake_rao(self, netuid: int, hotkey: str) -> int:
        """What stands behind ``hotkey`` on the subnet: its alpha there and its stake on the root, at par."""
        own: int = self.get("TotalHotkeyAlpha", hotkey, netuid)
        root: int = self.get("TotalHotkeyAlpha", hotkey, 0) if netuid else 0
        return own + root

    def next_epoch_block(self, netuid: int) -> int:
        """When the subnet's next epoch runs."""
        due: int = self.get("LastEpochBlock", netuid) + self.get("Tempo", netuid)
        return due


class MutableState(State):
    """The state that a block is being built on."""

    def __init__(self, runtime: ChainRuntime, overlay: Overlay, block: int) -> None:
        super().__init__(runtime, overlay, block)
        self.overlay = overlay

    def put(self, item: str, *params: Any, value: Any) -> None:
        """Set a value."""
        pallet, name = split(item)
        self.overlay.write(self.runtime.key(pallet, name, params), self.runtime.encode_item(pallet, name, value))

    def drop(self, item: str, *params: Any) -> None:
        """Delete a value; reading it gives the default again."""
        pallet, name = split(item)
        self.overlay.write(self.runtime.key(pallet, name, params), None)

    def add(self, item: str, *params: Any, delta: int) -> None:
        """Add to a number."""
        self.put(item, *params, value=self.get(item, *params) + delta)
