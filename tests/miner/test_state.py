"""Disk state: whole or absent, settled exactly once, and another run's is not mistaken for one's own."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from common.errors import SetupError
from common.merge.account import Account, Pending
from common.units import Hotkey, Revision
from miner.adamw import OptimizerState
from miner.delta import Outstanding, decoded
from miner.ledger import MAX_LIVE, Ledger
from miner.settle import OwnPlan
from miner.state import Memory, StateFolder, lock_folder
from tests.miner.working import COUNT, SPEC, folder, noise, outstanding, place, work

ACCOUNT = Account(noise(7))
SENT = outstanding(work(noise(1)), ACCOUNT)
LATER = outstanding(work(noise(1) + noise(2), steps=9), ACCOUNT)


def memory(pending: Outstanding | None = None, carried: bool = False) -> Memory:
    account = ACCOUNT
    if pending is not None:
        sent = pending.sent
        account = Account(noise(7), Pending(*sent.origin, noise(6), decoded(SPEC, sent, COUNT), pending.cap_norm))
    optimizer = OptimizerState(noise(8), noise(9) ** 2, 17)
    return Memory(
        account, optimizer, Revision(1), pending.sent if pending else None, work(noise(5)) if carried else None
    )


def same(a: Memory, b: Memory) -> bool:
    vectors = [
        (a.account.residual, b.account.residual),
        (a.optimizer.first, b.optimizer.first),
        (a.optimizer.second, b.optimizer.second),
    ]
    if a.account.pending is not None and b.account.pending is not None:
        vectors += [
            (a.account.pending.target, b.account.pending.target),
            (a.account.pending.sent, b.account.pending.sent),
        ]
    if a.carried is not None and b.carried is not None:
        vectors += [(a.carried.moved, b.carried.moved)]
    facts = [
        (m.settled, m.pending, m.optimizer.steps, m.carried and replace(m.carried, moved=noise(0))) for m in (a, b)
    ]
    return all(np.array_equal(x, y) for x, y in vectors) and repr(facts[0]) == repr(facts[1])


def opened(path: Path) -> Ledger:
    return Ledger.open(SPEC, folder(path), COUNT)


@pytest.mark.parametrize("pending", [None, SENT])
@pytest.mark.parametrize("carried", [False, True])
def test_the_memory_comes_back_as_it_was(tmp_path: Path, pending: Outstanding | None, carried: bool) -> None:
    made = memory(pending, carried)
    folder(tmp_path).save_memory(made)
    again = folder(tmp_path).load_memory()
    assert again is not None
    assert same(again, made)


def test_a_submission_comes_back_as_it_was(tmp_path: Path) -> None:
    folder(tmp_path).save_submission(SENT)
    (again,) = folder(tmp_path).load_submissions()
    assert again.sent == SENT.sent
    assert again.cap_norm == SENT.cap_norm
    assert np.array_equal(again.work.moved, SENT.work.moved)
    assert (again.work.trace, again.work.tokens, again.work.life) == (SENT.work.trace, SENT.work.tokens, 0)


def test_an_empty_folder_is_a_fresh_start(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    assert (ledger.settled, ledger.live, ledger.pending, ledger.work) == (None, (), None, None)
    asyncio.run(ledger.adopt(Revision(4)))
    assert opened(tmp_path).settled == 4


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "garbage"])
def test_a_damaged_file_is_set_aside(tmp_path: Path, damage: str) -> None:
    folder(tmp_path).save_memory(memory(SENT, carried=True))
    folder(tmp_path).save_submission(SENT)
    for path in list(tmp_path.glob("*.safetensors")):
        data = path.read_bytes()
        changed = {"cut": data[:-5], "flip": b"\xff" + data[1:], "empty": b"", "garbage": bytes(range(256)) * 40}
        path.write_bytes(changed[damage])
    ledger = opened(tmp_path)
    assert (ledger.settled, ledger.live) == (None, ())
    assert len(list(tmp_path.glob("*.bad"))) == 2


@pytest.mark.parametrize("other", [{"spec": replace(SPEC, seed=1)}, {"hotkey": Hotkey("5" + "F" * 47)}])
def test_state_of_another_run_or_hotkey_is_not_taken(tmp_path: Path, other: dict[str, object]) -> None:
    folder(tmp_path).save_memory(memory())
    assert folder(tmp_path, **other).load_memory() is None  # type: ignore[arg-type]


def test_a_memory_that_is_not_finite_is_not_taken(tmp_path: Path) -> None:
    bad = noise(7)
    bad[3] = np.nan
    made = memory()
    folder(tmp_path).save_memory(replace(made, optimizer=replace(made.optimizer, first=bad)))
    assert folder(tmp_path).load_memory() is None


def test_submissions_without_the_residual_that_they_were_made_with_count_for_nothing(tmp_path: Path) -> None:
    folder(tmp_path).save_submission(SENT)
    assert opened(tmp_path).live == ()
    assert folder(tmp_path).load_submissions() == []


def begun(path: Path) -> Ledger:
    folder(path).save_memory(memory())
    return opened(path)


def hand_in(ledger: Ledger, *ones: Outstanding) -> list[bool]:
    async def all_of_them() -> list[bool]:
        return [await ledger.hand_in(one) for one in ones]

    return asyncio.run(all_of_them())


def test_one_flipped_bit_sets_a_file_aside(tmp_path: Path) -> None:
    """In the middle of the weights, where nothing but the checksum can tell."""
    hand_in(begun(tmp_path), SENT)
    [path] = tmp_path.glob("submission-*.safetensors")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x40
    path.write_bytes(data)
    assert opened(tmp_path).live == ()
    assert [aside.suffix for aside in tmp_path.glob("*.bad")] == [".bad"]


def test_what_a_killed_process_left_half_written_is_removed(tmp_path: Path) -> None:
    hand_in(begun(tmp_path), SENT)
    for name in (".memory.safetensors.abcd1234", ".confirmed.a_cd1234"):
        (tmp_path / name).write_bytes(b"half")
    lock_folder(tmp_path).close()
    assert not list(tmp_path.glob(".*"))
    assert len(opened(tmp_path).live) == 1


def test_a_submission_on_a_base_that_is_settled_is_not_kept(tmp_path: Path) -> None:
    ledger = begun(tmp_path)
    other = outstanding(work(noise(1)), ACCOUNT, revision=2)
    assert hand_in(ledger, other, SENT) == [False, True]
    assert [one.sent for one in opened(tmp_path).live] == [SENT.sent]


def test_once_the_leader_has_two_the_earlier_ones_are_forgotten(tmp_path: Path) -> None:
    first, second, third, fourth = (outstanding(work(noise(i), steps=i), ACCOUNT) for i in range(1, 5))
    ledger = begun(tmp_path)
    hand_in(ledger, first, second, third, fourth)
    asyncio.run(ledger.confirm(second.sent))
    assert len(ledger.live) == 4, "a plan under way may name the first, and the later ones may arrive"
    asyncio.run(ledger.confirm(third.sent))
    assert [one.sent for one in opened(tmp_path).live] == [second.sent, third.sent, fourth.sent]


def test_what_the_leader_has_is_kept_however_many_later_ones_never_arrive(tmp_path: Path) -> None:
    first, *later = (outstanding(work(noise(i), steps=i), ACCOUNT) for i in range(1, MAX_LIVE + 4))
    ledger = begun(tmp_path)
    hand_in(ledger, first)
    asyncio.run(ledger.confirm(first.sent))
    hand_in(opened(tmp_path), *later)  # by another process: a restart knows what was confirmed
    assert [one.sent for one in opened(tmp_path).live] == [one.sent for one in (first, *later[-MAX_LIVE:])]
    (tmp_path / "confirmed").write_bytes(b"\xff garbage")
    assert len(opened(tmp_path).live) == 1 + MAX_LIVE


def test_a_dead_uplink_does_not_fill_the_disk(tmp_path: Path) -> None:
    ledger = begun(tmp_path)
    many = [outstanding(work(noise(i), steps=i), ACCOUNT, round_id=3 + i) for i in range(1, MAX_LIVE + 4)]
    hand_in(ledger, *many)
    assert [one.sent.round for one in ledger.live] == [one.sent.round for one in many[-MAX_LIVE:]]
    assert len(list(tmp_path.glob("submission-*"))) == MAX_LIVE


class KilledError(Exception):
    """SIGKILL."""


class Mortal(StateFolder):
    """Dies at its n-th change of the disk, before or after it."""

    def __init__(self, path: Path, at: int) -> None:
        super().__init__(path, SPEC, folder(path)._owner["hotkey"], COUNT)  # type: ignore[arg-type]
        self._left = at

    def _die(self) -> None:
        self._left -= 1
        if self._left == 0:
            raise KilledError

    def save_memory(self, memory: Memory) -> None:
        self._die()
        super().save_memory(memory)
        self._die()

    def save_submission(self, one: Outstanding) -> None:
        self._die()
        super().save_submission(one)
        self._die()

    def drop_submission(self, sent: object) -> None:
        self._die()
        super().drop_submission(sent)  # type: ignore[arg-type]
        self._die()


def through(ledger: Ledger, plan: OwnPlan) -> None:
    outcome = ledger.outcome([plan])
    asyncio.run(ledger.settle(plan.revision, outcome, None))


PLANS = {
    "drip accepted": (place(SENT.sent),),
    "final rejected": (place(LATER.sent, "rejected"),),
    "final deferred": (place(LATER.sent, "deferred"),),
    "nothing named": (),
}


@pytest.mark.parametrize("name", PLANS)
def test_a_kill_at_any_write_of_a_settlement_settles_once(tmp_path: Path, name: str) -> None:
    """Whatever the kill left, one more settlement through the same log leads to the same state."""
    plan = OwnPlan(Revision(2), Revision(1), PLANS[name])

    def settled(path: Path, at: int) -> Memory:
        hand_in(begun(path), SENT, LATER)
        with contextlib.suppress(KilledError):
            through(Ledger.open(SPEC, Mortal(path, at), COUNT), plan)
        ledger = opened(path)
        if ledger.settled == 1:
            through(ledger, plan)
        assert opened(path).live == ()
        assert list(path.glob("submission-*")) == []
        found = folder(path).load_memory()
        assert found is not None
        return found

    whole = settled(tmp_path / "whole", at=0)
    for at in range(1, 7):
        assert same(settled(tmp_path / str(at), at), whole), f"killed at change {at}"


@pytest.mark.parametrize("at", [1, 2])
def test_a_kill_while_a_submission_is_stored_leaves_it_whole_or_absent(tmp_path: Path, at: int) -> None:
    begun(tmp_path)
    with pytest.raises(KilledError):
        hand_in(Ledger.open(SPEC, Mortal(tmp_path, at), COUNT), SENT)
    assert [one.sent for one in opened(tmp_path).live] == ([] if at == 1 else [SENT.sent])


def test_what_was_put_away_is_taken_up_unless_a_submission_holds_it(tmp_path: Path) -> None:
    ledger = begun(tmp_path)
    hand_in(ledger, SENT)
    optimizer = OptimizerState(noise(1), noise(2) ** 2, 99)
    asyncio.run(ledger.put_away(SENT.work, optimizer))
    assert folder(tmp_path).load_memory().carried is None  # type: ignore[union-attr]
    ahead = work(noise(4), steps=6)
    asyncio.run(ledger.put_away(ahead, optimizer))
    again = opened(tmp_path)
    assert again.work is not None
    assert again.work.trace == ahead.trace
    assert again.optimizer is not None
    assert again.optimizer.steps == 99


def test_work_of_a_later_life_goes_before_more_work_of_an_earlier_one(tmp_path: Path) -> None:
    ledger = begun(tmp_path)
    hand_in(ledger, LATER, outstanding(work(noise(3), steps=1, life=1), ACCOUNT))
    assert ledger.work is not None
    assert (ledger.work.life, ledger.work.steps) == (1, 1)


def test_one_process_holds_a_folder(tmp_path: Path) -> None:
    with lock_folder(tmp_path), pytest.raises(SetupError, match="another miner"):
        lock_folder(tmp_path)
    lock_folder(tmp_path).close()
