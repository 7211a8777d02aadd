"""A rewritten history and a cut tail: whole in themselves, and given away by a head that was committed on chain."""

from __future__ import annotations

import pytest

from common import keys
from common.chain.headcommit import CommittedHead
from common.runlog.proving import VerifyError
from common.runlog.verify import verify_run
from common.spec import spec_hash
from common.units import sha256_hex
from tests.runlog.support import ALICE, BOB, opened, small_spec
from tests.runlog.world import World, begin_world, copy_store
from validator.run_heads import told


@pytest.fixture(scope="module")
def world() -> World:
    """One revision, and a round that has just been opened."""
    world = begin_world(small_spec())
    world.run_round()
    world.append(opened(world.state))
    return world


def head(world: World, seq: int) -> CommittedHead:
    body = world.store.get(keys.log_key("tiny", seq), max_bytes=1 << 20).body
    return CommittedHead("tiny", seq, sha256_hex(body))


def test_heads_prove_the_log_up_to_the_last_of_them(world: World) -> None:
    last = world.state.next_seq - 1
    heads = {ALICE.hotkey: head(world, last - 1), BOB.hotkey: head(world, 1)}
    tail = verify_run(world.store, "tiny", spec_hash(world.spec), heads=heads).tail
    assert tail is not None
    assert (tail.seq, tail.by, tail.heads) == (last - 1, (ALICE.hotkey,), 2)
    assert f"proved up to slot {last - 1} by heads on chain" in told(tail, last)
    assert ALICE.hotkey in told(tail, last)


def test_a_tail_cut_off_passes_alone_and_fails_against_a_head(world: World) -> None:
    last = world.state.next_seq - 1
    cut = copy_store(world.store)
    cut.delete(keys.log_key("tiny", last))
    report = verify_run(cut, "tiny")
    assert report.tail is None
    assert "not proved" in told(None, last - 1)
    assert "no validator has committed" in told(verify_run(cut, "tiny", heads={}).tail, last - 1)
    with pytest.raises(VerifyError, match="its tail was cut off") as caught:
        verify_run(cut, "tiny", heads={BOB.hotkey: head(world, last)})
    assert caught.value.key == keys.log_key("tiny", last)
    assert BOB.hotkey in str(caught.value)


def test_a_history_rewritten_by_owner_and_leader_passes_alone_and_fails_against_a_head(world: World) -> None:
    rewritten = begin_world(small_spec())
    rewritten.append(opened(rewritten.state))
    assert verify_run(rewritten.store, "tiny").state == rewritten.state
    was, now = head(world, 2), head(rewritten, 2)
    assert was != now
    with pytest.raises(VerifyError, match="rewritten") as caught:
        verify_run(rewritten.store, "tiny", heads={BOB.hotkey: was})
    assert caught.value.key == keys.log_key("tiny", 2)
    assert all(word in str(caught.value) for word in (BOB.hotkey, was.slot_sha256, now.slot_sha256))
