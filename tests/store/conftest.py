"""One real server for the area's tests; each test gets a prefix of its own on it."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from common.store.config import StorageConfig
from common.store.http import HttpClient
from common.store.port import ObjectStore, PresignedPut
from common.store.s3 import S3Store
from common.store.transfer import upload
from tests.store.bench import Bench, memory_bench, presign
from tests.support.storage import fresh_prefix, quick_store, running_server


@pytest.fixture(scope="session")
def server_config(tmp_path_factory: Any) -> Iterator[StorageConfig]:
    with running_server(tmp_path_factory.mktemp("seaweed")) as (_, config):
        yield config


@pytest.fixture
def config(server_config: StorageConfig) -> StorageConfig:
    return fresh_prefix(server_config)


@pytest.fixture
def s3(config: StorageConfig) -> S3Store:
    return quick_store(config)


@pytest.fixture
def http() -> Iterator[HttpClient]:
    client = HttpClient()
    yield client
    client.close()


@pytest.fixture(params=["memory", "s3"])
def bench(request: pytest.FixtureRequest, http: HttpClient) -> Bench:
    """Each kind of store in turn."""
    if request.param == "memory":
        return memory_bench()
    store = request.getfixturevalue("s3")
    past = request.getfixturevalue("signed_in_the_past")

    def presign_expired(key: str, body: bytes) -> PresignedPut:
        with past():
            return presign(store, key, body)

    return Bench(store, lambda put, body: upload(put.url, put.headers, body, http=http), presign_expired)


@pytest.fixture
def store(bench: Bench) -> ObjectStore:
    return bench.store


@pytest.fixture
def signed_in_the_past(monkeypatch: pytest.MonkeyPatch) -> Callable[[], AbstractContextManager[None]]:
    """A block in which requests are signed with a clock that is an hour slow, so that nothing need be waited for."""

    @contextmanager
    def slow_clock() -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setattr("botocore.auth.get_current_datetime", _an_hour_ago)
            yield

    return slow_clock


def _an_hour_ago(*_: object, **__: object) -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC).replace(tzinfo=None) - datetime.timedelta(hours=1)
