"""A leader whose replies from the storage are cut off finds its own bytes there, and nobody is deposed.

Real parts: SeaweedFS, a proxy that resets connections when the reply comes, boto3, lease and log writer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from common.clock import SystemClock
from common.runlog.entries import EntryData
from common.runlog.lease import LeaseKeeper
from common.runlog.reader import LogReader
from common.runlog.state import RunState
from common.runlog.writer import LogWriter
from common.store.reader import StoreReader
from common.store.s3 import S3Store
from tests.runlog.support import ALICE, OWNER, SPEC, genesis, no_patience, opened, takeover
from tests.support.faultproxy import FaultProxy
from tests.support.storage import fresh_prefix, quick_store, running_server


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[S3Store, S3Store, FaultProxy]]:
    """A store on the server, one through a faulty line to the same bucket, and the line."""
    with running_server(tmp_path_factory.mktemp("storage")) as (_, config):
        config = fresh_prefix(config)
        with FaultProxy(config.endpoint) as proxy:
            yield quick_store(config), quick_store(replace(config, endpoint=proxy.endpoint)), proxy


def test_every_append_and_renewal_survives_its_cut_reply(stores: tuple[S3Store, S3Store, FaultProxy]) -> None:
    direct, faulty, proxy = stores
    LogWriter(direct, SPEC, OWNER, SystemClock()).begin(genesis(), "the run begins")
    writer = LogWriter(faulty, SPEC, ALICE, SystemClock(), patience=no_patience())
    keeper = LeaseKeeper(faulty, SPEC, ALICE, SystemClock(), "process", patience=no_patience())
    state = writer.catch_up()

    def append(data: EntryData, reason: str) -> RunState:
        proxy.lose_replies()
        return writer.append(state, data, reason, term=1)

    proxy.lose_replies()
    keeper.acquire(1)
    state = append(takeover("process"), "leads")
    state = append(opened(state), "begins")
    assert keeper.held is not None
    counter = keeper.held.counter
    proxy.lose_replies()
    keeper.renew()
    assert keeper.held.counter == counter + 1
    assert proxy.connections > 4  # each cut reply cost a connection
    found = LogReader(StoreReader(direct), SPEC).catch_up()
    assert found == state
    assert (found.next_seq, found.leader, found.term, found.voids) == (3, ALICE.hotkey, 1, ())
