"""Fixtures: the runtime's metadata, one local chain for the session, and benches on it and in memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from common.chain.local.metadata import RuntimeMetadata, fetch_metadata
from tests.chain.support import Bench, ChainProcess, cache_dir, memory_bench, sdk_bench


@pytest.fixture(scope="session")
def metadata() -> RuntimeMetadata:
    """The runtime metadata, fetched once."""
    return fetch_metadata(cache_dir())


@pytest.fixture(scope="session", autouse=True)
def _sdk_outside_home(tmp_path_factory: pytest.TempPathFactory) -> None:
    from common.chain.sdk import isolate_sdk

    isolate_sdk(tmp_path_factory.mktemp("sdk"))


@pytest.fixture(scope="session")
def chain_process(tmp_path_factory: pytest.TempPathFactory, metadata: RuntimeMetadata) -> Iterator[ChainProcess]:
    """One local chain for all tests that don't stop it."""
    process = ChainProcess(tmp_path_factory.mktemp("chain"))
    process.start()
    yield process
    assert process.stop() == 0


@pytest.fixture(params=["memory", "sdk"])
def bench(request: pytest.FixtureRequest) -> Bench:
    """The contract's two sides."""
    if request.param == "memory":
        return memory_bench()
    return sdk_bench(request.getfixturevalue("chain_process").url)


@pytest.fixture
def node_bench(chain_process: ChainProcess) -> Bench:
    """The SDK on the local node only; the test closes it."""
    return sdk_bench(chain_process.url)
