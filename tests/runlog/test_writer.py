"""Writers on one log: races, lost replies, voids in the way, deposition."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common import keys
from common.clock import ManualClock
from common.errors import Rejected, Retryable
from common.identity import Signer
from common.runlog.casput import MAX_READ_BYTES
from common.runlog.proving import ProvingReader
from common.runlog.reader import LogReader, catch_up
from common.runlog.replay import replay
from common.runlog.state import RunState
from common.runlog.writer import LogWriter, LostSlot
from common.store.memory import MemoryStore
from common.store.port import ObjectStore, OutcomeUnknown
from common.store.reader import StoreReader
from tests.runlog.support import (
    ALICE,
    BOB,
    OWNER,
    SPEC,
    aborted,
    genesis,
    no_patience,
    opened,
    slot,
    steady,
    takeover,
)


def writer(store: ObjectStore, signer: Signer) -> LogWriter:
    return LogWriter(store, SPEC, signer, ManualClock(), patience=no_patience())


def begun(store: ObjectStore) -> RunState:
    return writer(store, OWNER).begin(genesis(), "the run begins")


def slots(store: MemoryStore) -> list[bytes]:
    return [store.get(info.key, max_bytes=1 << 20).body for info in store.list(f"{keys.run_prefix(SPEC.run)}log/")]


def test_a_second_genesis_is_refused() -> None:
    store = MemoryStore()
    begun(store)
    with pytest.raises(Rejected) as caught:
        writer(store, OWNER).begin(genesis(), "again")
    assert caught.value.code == "run_exists"


@pytest.mark.parametrize("reply", ["lost", "late", "refused once"])
def test_a_cut_reply_deposes_nobody(reply: str) -> None:
    store = MemoryStore()
    state = begun(store)
    key = keys.log_key(SPEC.run, state.next_seq)
    if reply == "lost":
        store.lose_next_reply(key_part=key)
    elif reply == "late":
        store.fail_next(OutcomeUnknown(key, "the connection was reset"), operation="put")
    else:
        store.fail_next(Retryable("503"), operation="put")
    state = writer(store, ALICE).append(state, takeover(), "leads", term=1)
    assert state.leader == ALICE.hotkey
    assert replay(SPEC, slots(store)) == state
    assert state.voids == ()


def test_a_store_that_stays_away_is_said_and_a_later_append_finds_what_was_written() -> None:
    store = MemoryStore()
    state = begun(store)
    store.lose_next_reply(key_part="log")
    for _ in range(30):
        store.fail_next(Retryable("no connection"), operation="get")
    with pytest.raises(Retryable):
        writer(store, ALICE).append(state, takeover(), "leads", term=1)
    store._faults.clear()
    with pytest.raises(LostSlot) as lost:
        writer(store, ALICE).append(state, takeover(), "leads", term=1)
    assert lost.value.state.leader == ALICE.hotkey


def test_a_void_entry_in_the_way_is_passed_by() -> None:
    store = MemoryStore()
    state = writer(store, ALICE).append(begun(store), takeover(), "leads", term=1)
    store.put(keys.log_key(SPEC.run, state.next_seq), b"junk")
    store.put(keys.log_key(SPEC.run, state.next_seq + 1), slot(state, opened(state), BOB))
    state = writer(store, ALICE).append(state, opened(state), "a round", term=1)
    assert state.open_round is not None
    assert [void.code for void in state.voids] == ["bad_json", "wrong_seq"]
    assert replay(SPEC, slots(store)) == state


def test_the_deposed_leader_learns_it_and_writes_nothing() -> None:
    store = MemoryStore()
    old = writer(store, ALICE).append(begun(store), takeover(), "leads", term=1)
    new = writer(store, BOB).append(old, takeover(), "takes over", term=2)
    with pytest.raises(LostSlot) as lost:
        writer(store, ALICE).append(old, opened(old), "a round", term=1)
    assert lost.value.state == new
    with pytest.raises(Rejected) as refused:
        writer(store, ALICE).append(lost.value.state, opened(new), "a round", term=1)
    assert refused.value.code == "stale_term"
    assert len(slots(store)) == new.next_seq


Move = tuple[bool, int]  # who moves, and how: 0 take over, 1 open or abort a round, 2 catch up


@steady(60)
@given(
    moves=st.lists(st.tuples(st.booleans(), st.integers(0, 2)), max_size=25),
    faults=st.lists(st.sampled_from(["lose", "fail", "junk", ""]), max_size=25),
)
def test_two_writers_never_fork_the_log(moves: list[Move], faults: list[str]) -> None:
    """Each writer acts on what it last saw; every state it is given is the replay of a prefix of the one log."""
    store = MemoryStore()
    first = begun(store)
    states = {False: first, True: first}
    writers = {False: writer(store, ALICE), True: writer(store, BOB)}
    for index, (who, how) in enumerate(moves):
        state = states[who]
        fault = faults[index] if index < len(faults) else ""
        if fault == "lose":
            store.lose_next_reply(key_part="log")
        elif fault == "fail":
            store.fail_next(Retryable("503"), operation="put")
        elif fault == "junk":
            with contextlib.suppress(Retryable):  # a reply may be lost here too
                store.put(keys.log_key(SPEC.run, len(slots(store))), b"junk")
        try:
            if how == 0:
                states[who] = writers[who].append(state, takeover(), "takes over", state.term + 1)
            elif how == 1:
                data = opened(state) if state.open_round is None else aborted(state)
                states[who] = writers[who].append(state, data, "a move", state.term)
            else:
                states[who] = writers[who].catch_up(state)
        except LostSlot as lost:
            states[who] = lost.state
        except Retryable:
            pass  # an outage that outlasts the writer's patience: it knows no more than before, and acts on that
        except Rejected as refused:
            if refused.code not in ("not_leader", "stale_term"):
                raise
        for seen in states.values():
            assert replay(SPEC, slots(store)[: seen.next_seq]) == seen


class _Reader:
    def __init__(self, store: MemoryStore) -> None:
        self.store = store

    def fetch(self, key: str, *, max_bytes: int, sha256: str | None = None, size_bytes: int | None = None) -> bytes:
        return self.store.get(key, max_bytes=max_bytes).body


def test_a_reader_follows_with_one_get_of_the_free_slot() -> None:
    store = MemoryStore()
    begun(store)
    log = LogReader(_Reader(store), SPEC)
    state = log.catch_up()
    asked: list[str] = []
    store.before = lambda operation, key: asked.append(f"{operation} {key}")
    assert log.catch_up(state) == state
    assert asked == [f"get {keys.log_key(SPEC.run, 1)}"]
    store.before = None
    state = writer(store, ALICE).append(state, takeover(), "leads", term=1)
    assert [step.state for step in log.steps(log.catch_up())] == []
    assert log.catch_up() == state


def test_an_empty_log_is_said() -> None:
    with pytest.raises(Rejected) as caught:
        LogReader(_Reader(MemoryStore()), SPEC).catch_up()
    assert caught.value.code == "no_genesis"


def test_an_oversized_slot_is_void_for_writer_and_every_reader() -> None:
    store = MemoryStore()
    state = begun(store)
    key = keys.log_key(SPEC.run, state.next_seq)
    store.put(key, bytes(MAX_READ_BYTES + 1))
    state = writer(store, ALICE).append(state, takeover(), "leads", term=1)
    assert (state.leader, state.next_seq) == (ALICE.hotkey, 3)
    assert [void.seq for void in state.voids] == [1]
    assert LogReader(StoreReader(store), SPEC).catch_up() == state
    assert writer(store, BOB).catch_up() == state
    verified = ProvingReader(store)
    assert catch_up(SPEC, lambda seq: verified.find_slot(SPEC.run, seq), None) == state
    assert writer(store, ALICE).append(state, opened(state), "goes on", term=1).open_round is not None


def test_a_slot_that_cannot_be_read_for_another_reason_is_not_void() -> None:
    store = MemoryStore()
    begun(store)
    store.fail_next(Rejected("access_denied", "no"), operation="get", key_part=keys.log_key(SPEC.run, 1))
    with pytest.raises(Rejected, match="no"):
        LogReader(StoreReader(store), SPEC).catch_up()
