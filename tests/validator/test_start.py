"""What a start refuses, each in one line, and the server on a real socket."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from pathlib import Path

import httpx
import pytest

from common.chain.commitment import RunLocation, encode
from common.chain.discovery import find_run
from common.data.dataset import Dataset
from common.errors import OperatorError, Rejected, Retryable, SetupError
from common.options import storage_config
from common.spec import spec_hash
from common.store.config import StorageConfig, save_config
from common.store.memory import MemoryStore
from common.store.port import PresignedPut
from common.store.probe import probe
from common.store.reader import StoreReader
from common.store.retry import RetryPolicy
from common.units import Coldkey, Hotkey, Sha256
from tests.support.memchain import MemoryWallet
from tests.support.specs import OWNER, VALIDATOR, tiny_spec
from tests.validator.world import World
from validator import start
from validator.api.server import Server, bind
from validator.cli import check_host
from validator.start import (
    check_location,
    check_seat,
    check_spec,
    load_spec,
    locked,
    patiently,
    until,
)

STORAGE = StorageConfig("http://127.0.0.1:9000", "brigade", "key", "secret")
LOCATION = RunLocation("demo", Sha256("1" * 64), "http://127.0.0.1:9000", "brigade", "", True)


def test_settings_of_the_storage_come_from_one_place(tmp_path: Path) -> None:
    file = tmp_path / "storage.json"
    save_config(STORAGE, file)
    assert storage_config("--storage", file, None, None, "", "us-east-1", "", "") == STORAGE
    made = storage_config("--storage", None, STORAGE.endpoint, "brigade", "", "us-east-1", "key", "secret")
    assert made == STORAGE
    with pytest.raises(OperatorError, match="not both"):
        storage_config("--storage", file, STORAGE.endpoint, "brigade", "", "us-east-1", "", "")
    with pytest.raises(OperatorError, match="give --storage"):
        storage_config("--storage", None, STORAGE.endpoint, None, "", "us-east-1", "", "")


def test_addresses_that_the_chain_or_nobody_can_use_are_refused() -> None:
    check_host("127.0.0.2", None)
    check_host("0.0.0.0", "192.0.2.7")
    with pytest.raises(OperatorError, match=r"use 127\.0\.0\.2"):
        check_host("127.0.0.1", None)
    with pytest.raises(OperatorError, match="--publish-ip"):
        check_host("0.0.0.0", None)


def test_another_subnet_is_refused() -> None:
    check_spec(tiny_spec(), 2)
    with pytest.raises(OperatorError, match="subnet 2, not 3"):
        check_spec(tiny_spec(), 3)


def test_a_run_whose_times_contradict_each_other_is_refused() -> None:
    slow = dataclasses.replace(tiny_spec().round, drip_s=1000.0)
    with pytest.raises(OperatorError, match="drip_s"):
        check_spec(tiny_spec(round=slow), 2)


def test_a_bucket_that_is_not_the_runs_is_refused() -> None:
    check_location(LOCATION, STORAGE)
    with pytest.raises(OperatorError, match="lives in"):
        check_location(LOCATION, StorageConfig("http://127.0.0.1:9000", "another", "key", "secret"))


def test_the_run_is_found_by_the_owners_commitment_and_its_spec_by_hash(dataset: Dataset) -> None:
    world = World(dataset)

    async def go() -> None:
        await world.begin(0)
        owner = world.chain_world.port(MemoryWallet(OWNER.hotkey, Coldkey("owner-cold")))
        with pytest.raises(Retryable, match="has not committed"):
            await find_run(owner, 2)
        right = RunLocation("demo", spec_hash(world.spec), "http://127.0.0.1:9000", "brigade", "", True)
        await owner.set_commitment(2, encode(right))
        assert await find_run(owner, 2) == right
        assert load_spec(StoreReader(world.store), right) == world.spec
        with pytest.raises(SetupError, match="not what its owner committed"):
            load_spec(StoreReader(world.store), LOCATION)
        await check_seat(owner, 2, VALIDATOR.hotkey)
        with pytest.raises(SetupError, match="no seat"):
            await check_seat(owner, 2, Hotkey("nobody"))

    asyncio.run(go())


def test_a_refusal_at_the_start_ends_it_in_one_line() -> None:
    async def refused() -> None:
        raise Rejected("access_denied", "the keys do not fit")

    with pytest.raises(SetupError, match="the storage: access_denied"):
        asyncio.run(patiently(refused, "the storage"))


def test_a_start_waits_for_storage_and_chain_however_long_they_are_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "PATIENCE", RetryPolicy(first_wait_s=0.0, longest_wait_s=0.0))
    tries = 0

    async def away() -> str:
        nonlocal tries
        tries += 1
        if tries <= 100:
            raise Retryable("no connection")
        return "there"

    assert asyncio.run(patiently(away, "the storage")) == "there"


def test_a_bucket_that_nobody_serves_now_is_waited_for_and_one_that_will_not_do_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(Retryable, match="Is it running, and the endpoint right"):
        start.try_bucket(dataclasses.replace(STORAGE, endpoint="http://127.0.0.1:1"))
    monkeypatch.setattr(start, "S3Store", lambda config: MemoryStore(honours_conditions=False))
    monkeypatch.setattr(start, "probe_bucket", lambda store, token: probe(store, token, send=_sent, skew_s=lambda: 0.0))
    with pytest.raises(SetupError, match="ignores conditional puts"):
        start.try_bucket(STORAGE)


def _sent(put: PresignedPut, body: bytes) -> None:
    raise AssertionError("refused before")


def test_the_server_speaks_http_on_the_socket_it_was_given_and_a_taken_port_is_said(dataset: Dataset) -> None:
    world = World(dataset)

    async def go() -> None:
        await world.begin(1)
        validator = world.validator()
        sock = bind("127.0.0.1", 0)
        host, port = sock.getsockname()
        with pytest.raises(SetupError, match="can't listen"):
            bind(host, port)
        serving = asyncio.create_task(Server(validator.app).run_on(sock))
        async with httpx.AsyncClient(base_url=f"http://{host}:{port}", trust_env=False) as http:
            health = await http.get("/v1/health")
        assert health.json()["run"] == "demo"
        serving.cancel()
        await asyncio.wait((serving,))

    asyncio.run(go())


def test_one_hotkey_has_one_process_in_a_folder(tmp_path: Path) -> None:
    path = tmp_path / "validator" / "key.lock"
    with locked(path), pytest.raises(SetupError, match="another validator"), locked(path):
        pass
    with locked(path):
        pass


def test_a_validator_stops_while_the_storage_swallows_every_call(dataset: Dataset) -> None:
    """No thread is waited for at the end: the call is still in the air when the event loop is gone."""
    world = World(dataset)
    swallowed, back = threading.Event(), threading.Event()
    waited_out: list[bool] = []

    def black_hole(operation: str, key: str) -> None:
        swallowed.set()
        waited_out.append(not back.wait(60.0))

    async def go() -> None:
        await world.begin(1)
        validator = world.validator()
        world.store.before = black_hole
        stop = asyncio.Event()
        running = asyncio.create_task(until(stop, validator.driver.run()))
        while not swallowed.is_set():
            await asyncio.sleep(0.01)
        stop.set()
        await running

    asyncio.run(go())
    assert waited_out == []
    back.set()
