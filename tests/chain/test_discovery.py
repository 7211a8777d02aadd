"""The run of a subnet, as its owner committed it."""

from __future__ import annotations

import asyncio

import pytest

from common.chain import commitment
from common.chain.discovery import base_url, find_run
from common.errors import Rejected, Retryable
from common.units import Coldkey, Hotkey, Sha256
from tests.support.memchain import MemoryWorld, Subnet

NETUID, OWNER = 2, Hotkey("owner")
PLACE = commitment.RunLocation("tiny", Sha256("ab" * 32), "https://s3.example", "bucket", "x/y", public_read=True)


def subnet_with(fields: tuple[bytes, ...] | None) -> MemoryWorld:
    chain = MemoryWorld(Coldkey("sudo"))
    chain.subnets[NETUID] = Subnet(Coldkey("owner"), OWNER, last_epoch_block=0)
    if fields is not None:
        chain.subnets[NETUID].commitments[OWNER] = fields
    return chain


def test_the_committed_run_is_found() -> None:
    found = asyncio.run(find_run(subnet_with(commitment.encode(PLACE)).port(), NETUID))
    assert found == PLACE
    assert base_url(found) == "https://s3.example/bucket/x/y"


def test_before_the_commitment_it_is_waited_for() -> None:
    with pytest.raises(Retryable, match="not committed a run: `brigade run create`"):
        asyncio.run(find_run(subnet_with(None).port(), NETUID))


def test_something_else_on_chain_is_refused() -> None:
    with pytest.raises(Rejected, match="bad_commitment"):
        asyncio.run(find_run(subnet_with((b"ipfs", b"x", b"y")).port(), NETUID))
