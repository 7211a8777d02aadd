"""Who holds the lease: takeovers on the watcher's own clock, races, restarts, replies that never came."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common import keys
from common.clock import ManualClock
from common.errors import Retryable
from common.identity import Signer
from common.runlog.casput import MAX_READ_BYTES
from common.runlog.lease import LeaseKeeper, LeaseLost, Sight, Watcher, decide, decode_lease, encode_lease, observe
from common.store.memory import MemoryStore
from tests.runlog.support import ALICE, BOB, SPEC, STRANGER, no_patience, steady

T = 15.0
KEY = keys.lease_key(SPEC.run)


def keeper(store: MemoryStore, signer: Signer, clock: ManualClock, instance: str = "p") -> LeaseKeeper:
    return LeaseKeeper(store, SPEC, signer, clock, instance, patience=no_patience(), lease_s=T)


def test_the_first_takes_it_and_renewals_hold_off_the_second() -> None:
    store, clock = MemoryStore(), ManualClock()
    alice, bob = keeper(store, ALICE, clock), keeper(store, BOB, clock)
    assert alice.acquire(term=1).take
    for _ in range(10):
        clock.advance(T / 2)
        alice.renew()
        assert not bob.acquire(term=2).take
    assert alice.sure()
    assert alice.held is not None
    assert alice.held.counter == 11


def test_a_silent_holder_is_replaced_after_t_on_the_watchers_clock() -> None:
    store, clock = MemoryStore(), ManualClock()
    alice, bob = keeper(store, ALICE, clock), keeper(store, BOB, clock)
    alice.acquire(term=1)
    clock.advance(100 * T)  # Bob did not look: for him the lease is new
    assert not bob.acquire(term=2).take
    clock.advance(T - 0.1)
    assert not bob.acquire(term=2).take
    clock.advance(0.1)
    assert not alice.sure()
    assert bob.acquire(term=2).take
    assert bob.held is not None
    with pytest.raises(LeaseLost):
        alice.renew()
    assert alice.held is None
    assert alice.seen == bob.held


def test_wall_clocks_that_disagree_do_no_harm() -> None:
    store = MemoryStore()
    alice = keeper(store, ALICE, ManualClock(epoch_ns=0))
    bob = keeper(store, BOB, ManualClock(now_s=9e6, epoch_ns=10**18))
    alice.acquire(term=1)
    assert not bob.acquire(term=2).take


def test_a_restarted_process_of_the_same_hotkey_takes_over_at_once() -> None:
    store, clock = MemoryStore(), ManualClock()
    before = keeper(store, ALICE, clock, "before")
    before.acquire(term=1)
    after = keeper(store, ALICE, clock, "after")
    assert after.acquire(term=2).take
    assert after.held is not None
    assert after.held.instance == "after"
    with pytest.raises(LeaseLost):
        before.renew()


def test_two_watchers_that_see_it_expire_do_not_both_get_it() -> None:
    store, clock = MemoryStore(), ManualClock()
    carol = keeper(store, ALICE, clock, "carol")
    bob = keeper(store, BOB, clock)
    keeper(store, ALICE, clock, "dead").acquire(term=1)
    bob.watch()
    clock.advance(T)

    def let_the_other_in(operation: str, _: str) -> None:
        if operation == "put":
            store.before = None
            assert carol.acquire(term=2).take

    store.before = let_the_other_in
    assert not bob.acquire(term=2).take
    assert bob.held is None
    carol.renew()


@pytest.mark.parametrize("reply", ["lost", "never sent"])
def test_a_cut_reply_loses_no_lease(reply: str) -> None:
    store, clock = MemoryStore(), ManualClock()
    alice = keeper(store, ALICE, clock)
    alice.acquire(term=1)
    for _ in range(3):
        if reply == "lost":
            store.lose_next_reply(key_part=KEY)
        else:
            store.fail_next(Retryable("no connection"), operation="put")
        alice.renew()
    assert alice.held is not None
    assert alice.held.counter == 4
    assert decode_lease(store.get(KEY, max_bytes=9999).body, SPEC.run, SPEC.validators) == alice.held


def test_no_version_comes_back() -> None:
    """ABA: an ETag is a function of the bytes in S3, so no two writes may have the same ones."""
    store, clock = MemoryStore(), ManualClock()
    alice = keeper(store, ALICE, clock)
    etags = set()
    for _ in range(20):
        alice.acquire(term=1)
        alice.renew()
        info = store.head(KEY)
        assert info is not None
        etags.add(info.etag)
    assert len(etags) == 20


def test_bytes_that_are_no_lease_expire_like_one() -> None:
    store, clock = MemoryStore(), ManualClock()
    alice = keeper(store, ALICE, clock)
    alice.acquire(term=1)
    assert alice.held is not None
    stranger = replace(alice.held, signer=STRANGER.hotkey)
    for body in (b"junk", encode_lease(stranger, STRANGER)):
        store.put(KEY, body)
        watcher = keeper(store, BOB, clock)
        assert not watcher.acquire(term=2).take
        clock.advance(T)
        assert watcher.acquire(term=2).take


@steady(100)
@given(
    seen=st.lists(st.tuples(st.floats(0, 10), st.sampled_from(["a", "b", None])), min_size=1, max_size=30),
)
def test_nobody_is_replaced_whose_lease_changed_within_t(seen: list[tuple[float, str | None]]) -> None:
    now_s, sight, changed_s, last = 0.0, None, 0.0, ""
    for wait_s, etag in seen:
        now_s += wait_s
        sight = observe(sight, etag, now_s)
        if etag != last:
            changed_s, last = now_s, etag or ""
        if etag is not None:
            assert decide(sight, None, Watcher(BOB.hotkey, "p", None), now_s, T).take == (now_s - changed_s >= T)
        else:
            assert decide(sight, None, Watcher(BOB.hotkey, "p", None), now_s, T).take
    assert isinstance(sight, Sight)


def test_two_living_processes_of_one_hotkey_do_not_depose_each_other_for_ever() -> None:
    store, clock = MemoryStore(), ManualClock()
    first = keeper(store, ALICE, clock, "first")
    first.acquire(term=1)
    second = keeper(store, ALICE, clock, "second")
    assert second.acquire(term=2).take, "it can't know that the first one lives"
    with pytest.raises(LeaseLost):
        first.renew()
    for _ in range(20):
        clock.advance(T / 4)
        second.renew()
        assert not first.acquire(term=3).take
    clock.advance(T)
    assert first.acquire(term=3).take, "a silent one is replaced, whoever it is"


def test_a_process_takes_its_own_lease_back_at_once() -> None:
    store, clock = MemoryStore(), ManualClock()
    one = keeper(store, ALICE, clock, "one")
    one.acquire(term=1)
    one.abandon()
    assert one.acquire(term=2).take


def test_a_deleted_lease_is_lost_at_once_and_taken_anew() -> None:
    store, clock = MemoryStore(), ManualClock()
    alice = keeper(store, ALICE, clock)
    alice.acquire(term=1)
    store.delete(KEY)
    with pytest.raises(LeaseLost, match="deleted"):
        alice.renew()
    assert alice.held is None
    assert alice.acquire(term=2).take
    alice.renew()
    assert alice.held is not None
    assert (alice.held.term, store.head(KEY) is not None) == (2, True)


def test_a_lease_deleted_between_look_and_swap_is_taken_at_the_next_look() -> None:
    store, clock = MemoryStore(), ManualClock()
    before = keeper(store, ALICE, clock, "before")
    before.acquire(term=1)
    after = keeper(store, ALICE, clock, "after")

    def delete_first(operation: str, key: str) -> None:
        if operation == "put":
            store.before = None
            store.delete(key)

    store.before = delete_first
    assert not after.acquire(term=2).take
    assert after.acquire(term=2).take
    assert after.held is not None


def test_an_oversized_lease_expires_like_any_unreadable_one() -> None:
    store, clock = MemoryStore(), ManualClock()
    alice = keeper(store, ALICE, clock)
    store.put(KEY, bytes(MAX_READ_BYTES + 1))
    assert not alice.acquire(term=1).take
    clock.advance(T)
    assert alice.acquire(term=1).take
    assert alice.held is not None
