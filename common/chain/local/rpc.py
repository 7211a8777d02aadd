"""The JSON-RPC methods of a Substrate node, as far as the Bittensor SDK and btcli use them.

Each method takes the session and its positional params; what is wrong with them is an ``RpcError``, never another
exception. Params come from strangers: every one is parsed by ``_text``, ``_hex``, ``_number`` or ``_block``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import bittensor_core

from common.chain.local.chain import Chain
from common.chain.local.node import Node
from common.chain.local.pool import PoolRefused, Watcher
from common.chain.local.splice import opaque
from common.chain.local.state import State
from common.chain.local.storage import View
from common.chain.local.views import answer

METHOD_NOT_FOUND, INVALID_PARAMS, EXECUTION_FAILED = -32601, -32602, 4003
MAX_PAGE = 1000
SPEC_NAME = "node-subtensor"


class RpcError(Exception):
    """A JSON-RPC error object."""

    def __init__(self, code: int, message: str, data: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.data = code, message, data

    def to_json(self) -> dict[str, Any]:
        """The error as it goes over the wire."""
        body: dict[str, Any] = {"code": self.code, "message": self.message}
        return body | ({"data": self.data} if self.data is not None else {})


class Session(Protocol):
    """One client's connection: what subscriptions are opened on."""

    node: Node

    def subscribe(self, method: str) -> tuple[str, Watcher]:
        """Open a subscription; returns its id and how to push to it."""
        ...

    def on_cancel(self, subscription: str, cancel: Callable[[], None]) -> None:
        """Call ``cancel`` when the subscription ends."""
        ...

    def unsubscribe(self, subscription: str) -> bool:
        """End a subscription; whether there was one."""
        ...


def call_method(session: Session, method: str, params: list[Any]) -> Any:
    """Run one request. Raises ``RpcError``."""
    handler = METHODS.get(method)
    if handler is None:
        raise RpcError(METHOD_NOT_FOUND, f"Method not found: {method}")
    try:
        return handler(session, params)
    except PoolRefused as refused:
        raise RpcError(refused.code, refused.message, refused.data) from None


# -- params ------------------------------------------------------------------------------------------------------


def _bad(what: str) -> RpcError:
    return RpcError(INVALID_PARAMS, f"Invalid params: {what}")


def _param(params: list[Any], index: int) -> Any:
    return params[index] if index < len(params) else None


def _text(params: list[Any], index: int) -> str:
    value = _param(params, index)
    if not isinstance(value, str):
        raise _bad(f"param {index} must be a string")
    return value


def _hex(params: list[Any], index: int) -> bytes:
    try:
        return bytes.fromhex(_text(params, index).removeprefix("0x"))
    except ValueError:
        raise _bad(f"param {index} must be hex") from None


def _number(value: Any, high: int) -> int:
    try:
        number = int(value, 16) if isinstance(value, str) else value
    except ValueError:
        raise _bad("a number is expected") from None
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= high:
        raise _bad(f"a number between 0 and {high} is expected")
    return number


def _block(chain: Chain, params: list[Any], index: int) -> int:
    """The number of the block whose hash is given; the head when none is. Its state must still be there."""
    if _param(params, index) is None:
        return chain.head
    number = chain.number_of(_hex(params, index))
    if number is None:
        raise RpcError(EXECUTION_FAILED, "Client error: UnknownBlock: Header was not found in the database")
    if chain.is_discarded(number):
        raise RpcError(EXECUTION_FAILED, f"Client error: State already discarded for {_text(params, index)}")
    return number


def _as_hex(data: bytes | None) -> str | None:
    return None if data is None else "0x" + data.hex()


# -- chain -------------------------------------------------------------------------------------------------------


def chain_block_hash(session: Session, params: list[Any]) -> Any:
    """The hash of a block by number, null beyond the head."""
    chain = session.node.chain
    value = _param(params, 0)
    return _as_hex(chain.block_hash(chain.head if value is None else _number(value, 2**32)))


def chain_head(session: Session, params: list[Any]) -> Any:
    """The newest block's hash. Blocks are final when they are made."""
    del params
    return _as_hex(session.node.chain.block_hash(session.node.chain.head))


def chain_header(session: Session, params: list[Any]) -> Any:
    """A header, null for an unknown block."""
    chain = session.node.chain
    number = chain.head if _param(params, 0) is None else chain.number_of(_hex(params, 0))
    return None if number is None else chain.header(number)


def chain_block(session: Session, params: list[Any]) -> Any:
    """A block, null if unknown."""
    chain = session.node.chain
    number = chain.head if _param(params, 0) is None else chain.number_of(_hex(params, 0))
    if number is None:
        return None
    body = [_as_hex(extrinsic) for extrinsic in chain.body(number)]
    return {"block": {"header": chain.header(number), "extrinsics": body}, "justifications": None}


def subscribe_heads(session: Session, params: list[Any]) -> Any:
    """Push every new header, the present one first."""
    del params
    chain = session.node.chain
    subscription, push = session.subscribe("chain_newHead")
    session.on_cancel(subscription, session.node.listen(lambda number: push(chain.header(number))))
    push(chain.header(chain.head))
    return subscription


def unsubscribe(session: Session, params: list[Any]) -> Any:
    """End any subscription."""
    return session.unsubscribe(str(_param(params, 0)))


# -- state -------------------------------------------------------------------------------------------------------


def state_storage(session: Session, params: list[Any]) -> Any:
    """One raw value."""
    chain = session.node.chain
    return _as_hex(chain.read(_hex(params, 0), _block(chain, params, 1)))


def state_query(session: Session, params: list[Any]) -> Any:
    """Many raw values at one block."""
    chain = session.node.chain
    keys = _param(params, 0)
    if not isinstance(keys, list) or len(keys) > MAX_PAGE:
        raise _bad(f"a list of at most {MAX_PAGE} keys is expected")
    number = _block(chain, params, 1)
    changes = [[key, _as_hex(chain.read(_hex(keys, index), number))] for index, key in enumerate(keys)]
    return [{"block": _as_hex(chain.block_hash(number)), "changes": changes}]


def state_keys(session: Session, params: list[Any]) -> Any:
    """A page of keys with a prefix."""
    chain = session.node.chain
    prefix = _hex(params, 0)
    count = _number(_param(params, 1), MAX_PAGE)
    after = b"" if _param(params, 2) is None else _hex(params, 2)
    keys = chain.storage.keys_at(prefix, after, count, _block(chain, params, 3))
    return [_as_hex(key) for key in keys]


def state_version(session: Session, params: list[Any]) -> Any:
    """The runtime's version: the same at every block."""
    del params
    metadata = session.node.runtime.metadata
    return {
        "specName": SPEC_NAME,
        "implName": SPEC_NAME,
        "authoringVersion": 1,
        "specVersion": metadata.spec_version,
        "implVersion": 1,
        "apis": [],
        "transactionVersion": metadata.transaction_version,
        "stateVersion": 1,
    }


def state_metadata(session: Session, params: list[Any]) -> Any:
    """The metadata in the old format."""
    del params
    return _as_hex(session.node.runtime.metadata.v14)


def state_call(session: Session, params: list[Any]) -> Any:
    """A runtime API call."""
    chain = session.node.chain
    method, arguments = _text(params, 0), _hex(params, 1)
    if method == "Metadata_metadata_at_version":
        return _as_hex(_metadata_at(session.node, arguments))
    number = _block(chain, params, 2)
    try:
        result = answer(State(chain.runtime, View(chain.storage, number), number), method, arguments)
    except (ValueError, KeyError, IndexError) as error:
        raise RpcError(EXECUTION_FAILED, f"Client error: Execution failed: {method}: {error}") from None
    if result is None:
        raise RpcError(EXECUTION_FAILED, f"Client error: Exported method {method} is not found")
    return _as_hex(result)


def _metadata_at(node: Node, arguments: bytes) -> bytes:
    version = int.from_bytes(arguments, "little")
    if version == 15:
        return node.runtime.metadata.v15_opaque
    return b"\x01" + opaque(node.runtime.metadata.v14) if version == 14 else b"\x00"


# -- author and system -------------------------------------------------------------------------------------------


def account_next_index(session: Session, params: list[Any]) -> Any:
    """The account's next nonce, the pool counted in."""
    account = _text(params, 0)
    try:
        account = bittensor_core.ss58_encode(bytes(bittensor_core.ss58_decode(account)), 42)
    except ValueError:
        raise _bad("an SS58 address is expected") from None
    return session.node.pool.next_nonce(session.node.chain.state(), account)


def submit(session: Session, params: list[Any]) -> Any:
    """Put an extrinsic into the pool."""
    return _as_hex(session.node.submit(_hex(params, 0), lambda _status: None))


def submit_and_watch(session: Session, params: list[Any]) -> Any:
    """Put an extrinsic into the pool and push what becomes of it."""
    subscription, push = session.subscribe("author_extrinsicUpdate")
    try:
        session.node.submit(_hex(params, 0), push)
    except (PoolRefused, RpcError):
        session.unsubscribe(subscription)
        raise
    return subscription


def constant(value: Any) -> Callable[[Session, list[Any]], Any]:
    """A method that always answers the same."""
    return lambda session, params: value


METHODS: dict[str, Callable[[Session, list[Any]], Any]] = {
    "account_nextIndex": account_next_index,
    "system_accountNextIndex": account_next_index,
    "author_submitExtrinsic": submit,
    "author_submitAndWatchExtrinsic": submit_and_watch,
    "author_unwatchExtrinsic": unsubscribe,
    "chain_getBlock": chain_block,
    "chain_getBlockHash": chain_block_hash,
    "chain_getFinalizedHead": chain_head,
    "chain_getHead": chain_head,
    "chain_getHeader": chain_header,
    "chain_subscribeFinalizedHeads": subscribe_heads,
    "chain_subscribeNewHeads": subscribe_heads,
    "chain_unsubscribeFinalizedHeads": unsubscribe,
    "chain_unsubscribeNewHeads": unsubscribe,
    "state_call": state_call,
    "state_getKeysPaged": state_keys,
    "state_getMetadata": state_metadata,
    "state_getRuntimeVersion": state_version,
    "state_getStorage": state_storage,
    "state_getStorageAt": state_storage,
    "state_queryStorageAt": state_query,
    "system_chain": constant("Brigade local"),
    "system_health": constant({"peers": 0, "isSyncing": False, "shouldHavePeers": False}),
    "system_name": constant("brigade chain local"),
    "system_properties": constant({"ss58Format": 42, "tokenDecimals": 9, "tokenSymbol": "TAO"}),
    "rpc_methods": lambda session, params: {"methods": sorted(METHODS)},
}
