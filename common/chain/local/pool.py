"""The transaction pool: what was accepted and waits for a block, in the order of arrival, nonces in sequence.

Refusals carry the codes and texts of a Substrate node, since clients parse them. As the real runtime does, some
calls that can only fail are refused here, before they cost a place in a block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from common.chain.local.extrinsic import Extrinsic
from common.chain.local.pallets.serving import serving_error
from common.chain.local.state import State

MAX_WAITING = 4096
MAX_AHEAD = 64  # how far a nonce may be ahead of the account's
INVALID, ALREADY_IMPORTED, LOW_PRIORITY, DROPPED = 1010, 1013, 1014, 1016
CUSTOM_CODES = {  # subtensor's ``CustomTransactionError``
    "HotKeyNotRegisteredInNetwork": 10,
    "InvalidIpAddress": 11,
    "ServingRateLimitExceeded": 12,
    "InvalidPort": 13,
}

Watcher = Callable[[Any], None]


class PoolRefused(Exception):
    """The pool does not take it; ``code`` and ``data`` go into the JSON-RPC error."""

    def __init__(self, code: int, message: str, data: str) -> None:
        super().__init__(data)
        self.code, self.message, self.data = code, message, data


def invalid(data: str) -> PoolRefused:
    """The refusal of an invalid transaction."""
    return PoolRefused(INVALID, "Invalid Transaction", data)


@dataclass
class Waiting:
    """An extrinsic in the pool and who wants to hear of it."""

    extrinsic: Extrinsic
    watch: Watcher


class Pool:
    """Waiting extrinsics by account and nonce."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, int], Waiting] = {}
        self._including: set[tuple[str, int]] = set()  # taken for a block that is not yet part of the chain

    def __len__(self) -> int:
        return len(self._waiting)

    def submit(self, extrinsic: Extrinsic, state: State, watch: Watcher) -> None:
        """Take ``extrinsic``; ``watch`` gets its status updates. Raises ``PoolRefused``."""
        slot = (extrinsic.account, extrinsic.nonce)
        next_nonce = account_nonce(state, extrinsic.account)
        if extrinsic.nonce < next_nonce:
            raise invalid("Transaction is outdated")
        if slot in self._waiting or slot in self._including:
            waiting = self._waiting.get(slot)
            if waiting and waiting.extrinsic.hash == extrinsic.hash:
                raise PoolRefused(ALREADY_IMPORTED, "Transaction is already imported", "0x" + extrinsic.hash.hex())
            raise PoolRefused(LOW_PRIORITY, "Priority is too low: (0 vs 0)", "The pool holds this nonce already.")
        if len(self._waiting) >= MAX_WAITING or extrinsic.nonce > next_nonce + MAX_AHEAD:
            raise PoolRefused(DROPPED, "Immediately dropped", "The transaction couldn't enter the pool.")
        self._check_call(extrinsic, state)
        self._waiting[slot] = Waiting(extrinsic, watch)
        watch("ready" if extrinsic.nonce == next_nonce else "future")

    def next_nonce(self, state: State, account: str) -> int:
        """The nonce behind the account's waiting extrinsics."""
        nonce = account_nonce(state, account)
        while (account, nonce) in self._waiting or (account, nonce) in self._including:
            nonce += 1
        return nonce

    def take(self, state: State) -> Iterator[Waiting]:
        """Remove and yield, in order, what block ``state.block`` can include. Expired ones are told and dropped."""
        nonces: dict[str, int] = {}
        for slot, waiting in list(self._waiting.items()):
            expires = waiting.extrinsic.expires
            if expires is not None and state.block >= expires:
                del self._waiting[slot]
                waiting.watch("invalid")
        progress = True
        while progress:
            progress = False
            for (account, nonce), waiting in list(self._waiting.items()):
                if nonce == nonces.setdefault(account, account_nonce(state, account)):
                    del self._waiting[account, nonce]
                    self._including.add((account, nonce))
                    nonces[account] += 1
                    progress = True
                    yield waiting

    def settle(self) -> None:
        """The block that was being made is part of the chain now."""
        self._including.clear()

    def _check_call(self, extrinsic: Extrinsic, state: State) -> None:
        call = extrinsic.call
        if (call["call_module"], call["call_function"]) != ("SubtensorModule", "serve_axon"):
            return
        arguments = {argument["name"]: argument["value"] for argument in call["call_args"]}
        wanted = {name: arguments[name] for name in ("netuid", "ip", "port", "ip_type")}
        error = serving_error(state, extrinsic.account, **wanted)
        if error in CUSTOM_CODES:
            raise invalid(f"Custom error: {CUSTOM_CODES[error]}")


def account_nonce(state: State, account: str) -> int:
    """The next nonce that a block takes from ``account``."""
    nonce: int = state.get("System.Account", account)["nonce"]
    return nonce
