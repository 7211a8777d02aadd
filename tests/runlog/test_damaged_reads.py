"""A log read over a line that damages bytes: nothing that stands in a slot is passed over for it."""

from __future__ import annotations

import pytest

from common import keys
from common.clock import ManualClock
from common.errors import Retryable
from common.runlog.reader import MOST_READS, catch_up
from common.runlog.writer import LogWriter
from common.store.memory import MemoryStore
from common.store.port import Fetched, PreconditionFailed
from tests.runlog.support import ALICE, OWNER, SPEC, genesis, no_patience, opened, takeover


class DamagingStore(MemoryStore):
    """The next reads of log slots come with a byte inverted; the next put takes effect and says that it did not."""

    damages = 0
    deceives = False

    def get(self, key: str, *, max_bytes: int) -> Fetched:
        found = super().get(key, max_bytes=max_bytes)
        if not self.damages or "/log/" not in key:
            return found
        self.damages -= 1
        return Fetched(damaged(found.body), found.info)

    def put(self, key: str, body: bytes, *, if_none_match: bool = False, if_match: str | None = None) -> str:
        etag = super().put(key, body, if_none_match=if_none_match, if_match=if_match)
        if self.deceives:
            self.deceives = False
            raise PreconditionFailed(key)
        return etag


def damaged(body: bytes) -> bytes:
    middle = len(body) // 2
    return body[:middle] + bytes([body[middle] ^ 0xFF]) + body[middle + 1 :]


@pytest.fixture
def store() -> DamagingStore:
    store = DamagingStore()
    LogWriter(store, SPEC, OWNER, ManualClock()).begin(genesis(), "the run begins")
    writer = LogWriter(store, SPEC, ALICE, ManualClock())
    state = writer.append(writer.catch_up(), takeover("process"), "leads", term=1)
    writer.append(state, opened(state), "begins", term=1)
    return store


def test_each_slot_that_is_read_damaged_is_read_again(store: DamagingStore) -> None:
    sound = LogWriter(store, SPEC, ALICE, ManualClock()).catch_up()
    seen: set[int] = set()

    def read_slot(seq: int) -> bytes | None:
        if seq >= sound.next_seq:
            return None
        body = store.get(keys.log_key(SPEC.run, seq), max_bytes=1 << 20).body
        first = seq not in seen
        seen.add(seq)
        return damaged(body) if first else body

    assert catch_up(SPEC, read_slot, None) == sound


def test_a_slot_that_reads_differently_each_time_is_no_void_one(store: DamagingStore) -> None:
    genesis_bytes = store.get(keys.log_key(SPEC.run, 0), max_bytes=1 << 20).body
    noise = iter(range(MOST_READS + 1))

    def read_slot(seq: int) -> bytes | None:
        return genesis_bytes if seq == 0 else str(next(noise)).encode()

    with pytest.raises(Retryable, match="differently each time"):
        catch_up(SPEC, read_slot, None)


def test_a_writer_that_reads_its_own_entry_damaged_knows_it_again(store: DamagingStore) -> None:
    """The reply to its put is lost, and the first look at the slot is damaged."""
    writer = LogWriter(store, SPEC, ALICE, ManualClock(), patience=no_patience())
    state = writer.catch_up()
    store.deceives, store.damages = True, 1
    after = writer.append(state, takeover("another"), "leads again", term=2)
    assert after == LogWriter(store, SPEC, ALICE, ManualClock()).catch_up()
    assert after.voids == ()
