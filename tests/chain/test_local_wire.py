"""What strangers send to the local chain: each bad thing gets its own refusal, and the chain goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bittensor_core import Keypair
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from common.chain.local.metadata import RuntimeMetadata
from common.chain.local.node import Node
from common.chain.local.rpc import METHODS
from common.chain.local.server import Connection
from common.clock import ManualClock
from tests.chain.support import async_test

ALICE = Keypair.create_from_uri("//Alice")
BOB = Keypair.create_from_uri("//Bob")
IMMORTAL = "00"
NO_WEIGHTS: dict[str, Any] = {"netuid": 1, "dests": [], "weights": [], "version_key": 0}


class Wire:
    """A client of a node in this process, without sockets; time moves when it says so."""

    def __init__(self, folder: Path, metadata: RuntimeMetadata) -> None:
        self.clock = ManualClock()
        self.node = Node(folder, metadata, self.clock, seed=bytes(32), block_time_s=1.0)
        self.connection = Connection(self.node)

    def ask(self, method: str, *params: Any) -> Any:
        """The reply to one request: its result, or its error object."""
        frame = {"jsonrpc": "2.0", "id": 1, "method": method, "params": list(params)}
        return self.say(json.dumps(frame))

    def say(self, frame: str | bytes) -> Any:
        """Send a frame; notifications that come before the reply are dropped."""
        self.connection.receive(frame)
        while True:
            message = json.loads(self.connection.outgoing.get_nowait())
            if isinstance(message, list) or "id" in message:
                return message if isinstance(message, list) else message.get("result", message.get("error"))

    async def block(self) -> int:
        """One second later: a new block."""
        self.clock.advance(1)
        await self.node.make_block(self.node.chain.head + 1)
        return self.node.chain.head

    def sign(self, module: str, function: str, args: dict[str, Any], key: Keypair = ALICE, **change: Any) -> str:
        """A signed extrinsic as hex; ``change`` overrides what is signed."""
        core = self.node.runtime.core
        call = change.get("call") or bytes(core.compose_call(module, function, args))
        nonce = change.get("nonce", self.ask("account_nextIndex", key.ss58_address))
        signed: dict[str, Any] = {"era": IMMORTAL, "nonce": nonce, "tip": 0, "tip_asset_id": None}
        genesis = change.get("genesis", self.node.chain.genesis_hash)
        payload = core.signature_payload(call, **signed, genesis_hash=genesis, era_block_hash=genesis)
        data, _ = core.encode_signed_extrinsic(
            call, public_key=bytes(key.public_key), signature=key.sign(bytes(payload)), signature_version=1, **signed
        )
        return "0x" + bytes(data).hex()

    def events(self) -> list[Any]:
        """``(pallet, event, attributes)`` of the newest block."""
        runtime, chain = self.node.runtime, self.node.chain
        raw = chain.read(runtime.key("System", "Events"), chain.head)
        assert raw is not None
        records = runtime.decode(runtime.events_type, raw)
        return [(record["module_id"], record["event_id"], record["attributes"]) for record in records]


@pytest.fixture
def wire(tmp_path: Path, metadata: RuntimeMetadata) -> Iterator[Wire]:
    wire = Wire(tmp_path, metadata)
    yield wire
    wire.node.close()


def transfer(wire: Wire, **change: Any) -> str:
    return wire.sign("Balances", "transfer_keep_alive", {"dest": BOB.ss58_address, "value": 7}, **change)


@async_test
async def test_a_good_extrinsic_is_in_the_next_block(wire: Wire) -> None:
    accepted = wire.ask("author_submitExtrinsic", transfer(wire))
    assert accepted.startswith("0x")
    await wire.block()
    assert ("System", "ExtrinsicSuccess") in [event[:2] for event in wire.events()]
    body = wire.ask("chain_getBlock")["block"]["extrinsics"]
    assert len(body) == 2
    assert wire.ask("account_nextIndex", ALICE.ss58_address) == 1


def test_a_wrong_signature_is_refused(wire: Wire) -> None:
    data = bytearray.fromhex(transfer(wire)[2:])
    for position in (40, 80, len(data) - 1):  # account, signature, call
        broken = bytearray(data)
        broken[position] ^= 1
        refused = wire.ask("author_submitExtrinsic", "0x" + broken.hex())
        assert refused["code"] == 1010, refused
    assert len(wire.node.pool) == 0


def test_a_signature_for_another_chain_is_refused(wire: Wire) -> None:
    refused = wire.ask("author_submitExtrinsic", transfer(wire, genesis=b"\x11" * 32))
    assert refused == {"code": 1010, "message": "Invalid Transaction", "data": "Transaction has a bad signature"}


@async_test
async def test_nonces_count(wire: Wire) -> None:
    first = transfer(wire)
    wire.ask("author_submitExtrinsic", first)
    assert wire.ask("author_submitExtrinsic", first)["code"] == 1013
    assert (
        wire.ask("author_submitExtrinsic", wire.sign("System", "remark", {"remark": "0x00"}, nonce=0))["code"] == 1014
    )
    later = transfer(wire, nonce=2)
    assert wire.ask("author_submitExtrinsic", later).startswith("0x")
    await wire.block()
    assert len(wire.node.pool) == 1
    assert wire.ask("author_submitExtrinsic", first)["data"] == "Transaction is outdated"
    wire.ask("author_submitExtrinsic", transfer(wire, nonce=1))
    await wire.block()
    assert wire.ask("account_nextIndex", ALICE.ss58_address) == 3


@async_test
async def test_a_failed_call_costs_its_nonce_and_leaves_no_trace(wire: Wire) -> None:
    poor = Keypair.create_from_uri("//Nobody")
    wire.ask("author_submitExtrinsic", transfer(wire, key=poor))
    await wire.block()
    (event,) = wire.events()
    assert event[1] == "ExtrinsicFailed"
    assert event[2]["dispatch_error"] == {"Token": "FundsUnavailable"}
    assert wire.ask("account_nextIndex", poor.ss58_address) == 1


@pytest.mark.parametrize(
    ("module", "function", "args"),
    [
        ("Balances", "transfer_keep_alive", {"dest": {"Raw": "0x1234"}, "value": 1}),
        ("System", "remark", {"remark": "0x00"}),
        ("SubtensorModule", "set_weights", NO_WEIGHTS | {"netuid": 0}),
        (
            "SubtensorModule",
            "set_mechanism_weights",
            {"netuid": 1, "mecid": 9, "dests": [], "weights": [], "version_key": 0},
        ),
        ("SubtensorModule", "add_stake", {"hotkey": BOB.ss58_address, "netuid": 9, "amount_staked": 2**64 - 1}),
        ("Commitments", "set_commitment", {"netuid": 1, "info": {"fields": [["ResetBondsFlag"]]}}),
    ],
)
@async_test
async def test_calls_that_fail_are_told_and_the_chain_goes_on(
    wire: Wire, module: str, function: str, args: dict[str, Any]
) -> None:
    assert wire.ask("author_submitExtrinsic", wire.sign(module, function, args)).startswith("0x")
    await wire.block()
    assert [event[1] for event in wire.events()] == ["ExtrinsicFailed"]
    wire.ask("author_submitExtrinsic", transfer(wire))
    await wire.block()
    assert [event[1] for event in wire.events()] == ["Transfer", "ExtrinsicSuccess"]


@async_test
async def test_a_batch_is_all_or_nothing(wire: Wire) -> None:
    core = wire.node.runtime.core
    good = bytes(core.compose_call("Balances", "transfer_keep_alive", {"dest": BOB.ss58_address, "value": 5}))
    bad = bytes(core.compose_call("Balances", "transfer_keep_alive", {"dest": BOB.ss58_address, "value": 10**20}))
    before = wire.node.chain.state().get("System.Account", BOB.ss58_address)
    batch = bytes(core.compose_call("Utility", "batch_all", {"calls": [good, bad]}))
    wire.ask("author_submitExtrinsic", wire.sign("", "", {}, call=batch))
    await wire.block()
    assert [event[1] for event in wire.events()] == ["ExtrinsicFailed"]
    assert wire.node.chain.state().get("System.Account", BOB.ss58_address) == before


def test_endless_nesting_is_refused(wire: Wire) -> None:
    core = wire.node.runtime.core
    call = bytes(core.compose_call("Balances", "transfer_all", {"dest": BOB.ss58_address, "keep_alive": True}))
    nested = b"\x0b\x02\x04" * 5000 + call
    assert wire.ask("author_submitExtrinsic", wire.sign("", "", {}, call=nested))["code"] == 1010


@async_test
async def test_deep_nesting_fails_when_it_runs(wire: Wire) -> None:
    call = bytes(
        wire.node.runtime.core.compose_call("Balances", "transfer_all", {"dest": BOB.ss58_address, "keep_alive": True})
    )
    wire.ask("author_submitExtrinsic", wire.sign("", "", {}, call=b"\x0b\x02\x04" * 20 + call))
    await wire.block()
    assert [event[1] for event in wire.events()] == ["ExtrinsicFailed"]


@async_test
async def test_watchers_hear_of_their_block_once_it_is_there(wire: Wire) -> None:
    wire.ask("author_submitAndWatchExtrinsic", transfer(wire))
    await wire.block()
    updates = []
    while not wire.connection.outgoing.empty():
        updates.append(json.loads(wire.connection.outgoing.get_nowait())["params"]["result"])
    assert [next(iter(update)) for update in updates if isinstance(update, dict)] == ["inBlock", "finalized"]
    assert updates[-1]["finalized"] == wire.ask("chain_getHead")


@async_test
async def test_heads_are_pushed_until_the_subscription_ends(wire: Wire) -> None:
    subscription = wire.ask("chain_subscribeNewHeads")
    await wire.block()
    assert json.loads(wire.connection.outgoing.get_nowait())["params"]["result"]["number"] == "0x1"
    assert wire.ask("chain_unsubscribeNewHeads", subscription) is True
    await wire.block()
    assert wire.connection.outgoing.empty()


@async_test
async def test_a_client_that_does_not_read_is_given_up(wire: Wire) -> None:
    wire.ask("chain_subscribeNewHeads")
    while not wire.connection.overflowed.is_set():
        await wire.block()
    assert wire.connection.outgoing.full()


@async_test
async def test_hashes_are_those_of_their_blocks_for_ever(wire: Wire) -> None:
    hashes = [wire.ask("chain_getBlockHash", 0)]
    for number in range(1, 6):
        if number % 2:
            wire.ask("author_submitExtrinsic", transfer(wire))
        await wire.block()
        hashes.append(wire.ask("chain_getHead"))
    assert [wire.ask("chain_getBlockHash", number) for number in range(6)] == hashes
    assert len(set(hashes)) == 6
    assert [int(wire.ask("chain_getHeader", value)["number"], 16) for value in hashes] == list(range(6))
    assert [wire.ask("chain_getHeader", value)["parentHash"] for value in hashes[1:]] == hashes[:-1]
    assert wire.ask("chain_getBlockHash", 6) is None
    assert wire.ask("chain_getHeader", "0x" + "00" * 32) is None


@pytest.mark.parametrize(
    "frame", ["", "{", "[]", "1", '"x"', "null", "{}", '{"method":1}', '[{"method":"nope"}]', b"\xff"]
)
def test_frames_that_are_no_requests(wire: Wire, frame: str | bytes) -> None:
    reply = wire.say(frame)
    error = reply[0]["error"] if isinstance(reply, list) else reply
    assert error["code"] in (-32700, -32600, -32601)


PARAMS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.binary(max_size=40).map(lambda raw: "0x" + raw.hex())
    | st.sampled_from(["SubnetInfoRuntimeApi_get_metagraph", "Core_version", "Metadata_metadata_at_version"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(method=st.sampled_from(sorted(METHODS)), params=st.lists(PARAMS, max_size=4))
def test_any_params_get_a_result_or_an_error_of_their_own(wire: Wire, method: str, params: list[Any]) -> None:
    reply = wire.ask(method, *params)
    assert not (isinstance(reply, dict) and reply.get("code") == -32603), reply
    wire.connection.close()
    while not wire.connection.outgoing.empty():
        wire.connection.outgoing.get_nowait()


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300))
def test_any_bytes_as_an_extrinsic_are_refused(wire: Wire, data: bytes) -> None:
    assert wire.ask("author_submitExtrinsic", "0x" + data.hex())["code"] == 1010


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(position=st.integers(0, 150), value=st.integers(0, 255))
def test_one_changed_byte_of_an_extrinsic_is_refused(wire: Wire, position: int, value: int) -> None:
    data = bytearray.fromhex(transfer(wire)[2:])
    position %= len(data)
    if data[position] != value:
        data[position] = value
        assert wire.ask("author_submitExtrinsic", "0x" + data.hex())["code"] == 1010
