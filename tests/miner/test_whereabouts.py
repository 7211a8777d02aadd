"""A miner follows its run to another bucket, and goes nowhere that it would not have gone at its start."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from common.chain.commitment import RunLocation, encode
from common.clock import ManualClock
from common.errors import Rejected
from common.runlog.entries import StorageMoved
from common.spec import spec_hash
from common.store.place import BucketPlace
from common.units import Coldkey
from miner.whereabouts import Whereabouts
from tests.runlog.support import OWNER, SPEC, after, led
from tests.support.memchain import MemoryWallet, MemoryWorld

HERE = RunLocation(SPEC.run, spec_hash(SPEC), "http://127.0.0.2:8333", "bucket", "", public_read=True)
THERE = replace(HERE, endpoint="http://127.0.0.3:8333", bucket="other", prefix="runs")


def place(location: RunLocation) -> BucketPlace:
    return BucketPlace(location.endpoint, location.bucket, location.prefix)


MOVED = after(led(), lambda _: StorageMoved(place(HERE), place(THERE), public_read=True), signer=OWNER)


def whereabouts(chain: MemoryWorld | None = None, allow_private: bool = True, netuid: int = 1) -> Whereabouts:
    world = chain or MemoryWorld(Coldkey("sudo"))
    return Whereabouts(HERE, world.port(), netuid, ManualClock(), allow_private)


def test_the_owners_entry_in_the_log_leads_to_the_new_bucket() -> None:
    where = whereabouts()
    asyncio.run(where.follow(led()))
    assert where.place() == place(HERE)
    asyncio.run(where.follow(MOVED))
    assert where.place() == place(THERE)
    where.check_upload("http://127.0.0.3:8333/other/runs/x?X-Amz-Signature=1")
    with pytest.raises(Rejected, match="url_refused"):
        where.check_upload("http://127.0.0.2:8333/bucket/x")
    asyncio.run(where.follow(MOVED))
    assert where.place() == place(THERE), "there it stays"


def test_nobody_is_led_to_a_private_address() -> None:
    where = whereabouts(allow_private=False)
    asyncio.run(where.follow(MOVED))
    assert where.place() == place(HERE)


@pytest.mark.parametrize(
    ("location", "follows"),
    [
        (THERE, True),
        (replace(THERE, spec_sha256="ab" * 32), False),
        (replace(THERE, run="another"), False),
        (replace(THERE, public_read=False), False),
    ],
)
def test_when_the_old_bucket_is_gone_the_chain_tells_where_this_very_run_is(
    location: RunLocation, follows: bool
) -> None:
    world = MemoryWorld(Coldkey("sudo"))

    async def go() -> Whereabouts:
        owner = MemoryWallet(OWNER.hotkey, Coldkey("owner"))
        world.balances_rao[owner.coldkey_ss58] = 10**15
        netuid = await world.port(owner).register_subnet()
        await world.port(owner).set_commitment(netuid, encode(location))
        where = whereabouts(world, netuid=netuid)
        await where.ask_chain()
        return where

    assert asyncio.run(go()).place() == place(THERE if follows else HERE)
