"""Who is alive and how fast, on the receiver's clock; who keeps a seat."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

import validator.membership
from common.chain.port import Metagraph
from common.data.dataset import Dataset
from common.errors import Retryable
from common.units import Coldkey, Hotkey, RoundId
from common.wire import Counters, Heartbeat, Phase
from tests.support.memchain import MemoryWallet
from tests.validator.world import World
from validator.ledger import Totals, restored
from validator.members import Members
from validator.membership import Membership
from validator.round.tokens import Seen

A, B = Hotkey("a"), Hotkey("b")
ROUND = RoundId(4)


def beat(
    seq: int, tokens: int = 0, round_id: int | None = 4, phase: Phase = Phase.TRAINING, session: str = "ab" * 8
) -> Heartbeat:
    return Heartbeat(
        session=session,
        seq=seq,
        phase=phase,
        round=round_id,
        revision=None,
        weights_sha256=None,
        round_tokens=tokens,
        round_steps=tokens // 10,
        tokens_per_s=1.0,
        loss=None,
        counters=Counters(tokens=tokens, training_s=1.0, online_s=1.0),
        upload=None,
        note="",
    )


def test_silence_ends_life_and_a_heartbeat_gives_it_back() -> None:
    members = Members(2.0)
    members.hear(A, beat(1, 10), 0.0, 1.0)
    assert [m.live for m in members.facts(ROUND, {}, 2.9)] == [True]
    assert members.facts(ROUND, {}, 3.0) == ()
    assert [m.hotkey for m in members.facts(ROUND, {A: True}, 3.0)] == [A], "what it delivered still counts"
    members.hear(A, beat(2, 20), 0.0, 4.0)
    assert [(m.live, m.tokens) for m in members.facts(ROUND, {}, 4.0)] == [(True, 20)]


def test_nobody_waits_for_whom_has_said_good_bye() -> None:
    members = Members(2.0)
    members.hear(A, beat(1, 10), 0.0, 1.0)
    members.hear(A, beat(2, 10, phase=Phase.DRAINING), 0.0, 1.1)
    assert members.facts(ROUND, {}, 1.2) == ()
    members.hear(A, beat(1, 0, session="cd" * 8), 0.0, 1.5)
    assert [m.live for m in members.facts(ROUND, {}, 1.6)] == [True], "its next process is another session"


def test_after_a_takeover_the_expected_count_as_live_for_one_timeout() -> None:
    members = Members(2.0)
    members.expect([A, B], 10.0)
    assert [(m.hotkey, m.live, m.heard, m.trains) for m in members.facts(ROUND, {}, 11.0)] == [
        (A, True, False, False),
        (B, True, False, False),
    ]
    members.hear(A, beat(1, 10), 10.0, 11.0)
    assert [m.hotkey for m in members.facts(ROUND, {}, 12.5)] == [A]


def test_a_heartbeat_that_overtook_another_changes_nothing() -> None:
    members = Members(2.0)
    members.hear(A, beat(5, 50), 0.0, 1.0)
    members.hear(A, beat(4, 40), 0.0, 1.5)
    assert members.facts(ROUND, {}, 1.5)[0].tokens == 50


def test_work_for_another_round_is_not_work_for_this_one() -> None:
    members = Members(2.0)
    members.hear(A, beat(1, 50, round_id=3), 0.0, 1.0)
    facts = members.facts(ROUND, {}, 1.0)[0]
    assert (facts.trains, facts.tokens) == (False, 0)


def test_what_was_seen_of_a_rounds_work_is_timed_by_us() -> None:
    members = Members(20.0)
    members.hear(A, beat(1, 0, round_id=3, phase=Phase.WAITING), 0.0, 1.0)
    for seq in range(2, 9):
        members.hear(A, beat(seq, 10 * (seq - 1)), 1.5, float(seq))
    assert members.seen(A, ROUND, 1.5, 9.0) == Seen(7.5, True), "it can't have begun before the round was opened"
    assert members.seen(A, RoundId(5), 8.0, 9.0) == Seen(1.0, False), "one that kept silent can have worked all along"
    assert members.seen(B, ROUND, 1.5, 9.0) == Seen(7.5, False)


def test_a_member_found_in_the_middle_of_its_round_was_not_watched_whole() -> None:
    members = Members(20.0)
    members.hear(A, beat(7, 70), 0.0, 1.0)
    assert members.seen(A, ROUND, 0.5, 2.0) == Seen(1.5, False)
    assert members.seen(A, ROUND, None, 2.0) == Seen(None, False), "a round that was open before us was not watched"


def test_the_time_of_sending_is_no_time_of_work() -> None:
    members = Members(20.0)
    members.hear(A, beat(1, 0, round_id=3, phase=Phase.WAITING), 0.0, 1.0)
    members.hear(A, beat(2, 30), 1.0, 2.0)
    members.hear(A, beat(3, 60, phase=Phase.WAITING), 1.0, 4.0)
    members.hear(A, beat(4, 60, phase=Phase.WAITING), 1.0, 5.0)
    members.hear(B, beat(1, 0), 1.0, 4.0)
    assert members.seen(A, ROUND, 1.0, 9.0) == Seen(3.0, True)
    assert members.claimed_rates(ROUND, 9.0) == {A: 20.0, B: 0.0}, "who claims nothing yet is there with nothing"
    members.hear(A, beat(5, 90), 1.0, 7.0)
    assert members.seen(A, ROUND, 1.0, 9.0) == Seen(8.0, True), "it trains again"


def test_a_round_shorter_than_a_heartbeat_is_work_still() -> None:
    members = Members(20.0)
    members.hear(A, beat(1, 60, round_id=3), 0.0, 1.0)
    members.hear(A, beat(2, 60, round_id=3, phase=Phase.WAITING), 0.0, 2.0)
    members.hear(A, beat(3, 40, phase=Phase.WAITING), 3.0, 5.0)
    assert members.seen(A, ROUND, 3.0, 9.0) == Seen(2.0, True), "the rest before the round is not the rest of the round"


def test_support_is_kept_of_those_that_are_known() -> None:
    members = Members(2.0)
    members.hear(A, beat(1, 10), 0.0, 1.0)
    members.support({A: 3.0, B: 5.0})
    assert members.supported() == {A: 3.0}


def test_proven_rates_are_kept_by_hotkey_of_those_that_are_known() -> None:
    members = Members(2.0)
    members.restore({A: restored("ab" * 8, Totals(40, 1.0, 1.0))}, 0.0)
    members.prove({A: 30.0, B: 50.0})
    members.hear(A, beat(9, 60), 0.0, 1.0)
    assert members.proven() == {A: 30.0}


def test_the_books_go_on_from_the_newest_report() -> None:
    members = Members(2.0)
    members.restore({A: restored("ab" * 8, Totals(40, 1.0, 1.0))}, 0.0)
    members.hear(A, beat(9, 60), 0.0, 1.0)
    member = members.get(A)
    assert member is not None
    assert member.account.growth().tokens == 20
    members.settle(A, member.account)
    assert member.account.growth().tokens == 0


def test_memory_is_bounded_by_the_seats_of_a_subnet() -> None:
    members = Members(2.0)
    for number in range(400):
        members.hear(Hotkey(f"m{number}"), beat(1, 10), 0.0, float(number))
    assert len(list(members)) == 256
    assert members.get(Hotkey("m399")) is not None


def test_a_seat_is_kept_for_the_round_and_lost_with_the_next(dataset: Dataset) -> None:
    world = World(dataset)

    async def go() -> None:
        await world.begin(1)
        port = world.chain_world.port(MemoryWallet(Hotkey("x"), Coldkey("x")))
        membership = Membership(port, world.spec.netuid, world.clock)
        hotkey = world.miners[0].signer.hotkey
        seat = await membership.seat(hotkey)
        assert seat is not None
        membership.pin(seat)
        world.chain_world.subnet(world.spec.netuid).neurons.pop()
        world.clock.advance(10.0)
        await membership.refresh()
        assert await membership.seat(hotkey) == seat
        membership.new_round()
        assert await membership.seat(hotkey) is None

    asyncio.run(go())


def test_a_round_opens_with_the_seats_of_now_and_a_held_chain_call_does_not_hold_it(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(dataset)
    monkeypatch.setattr(validator.membership, "CONNECT_S", 0.0)

    async def go() -> None:
        await world.begin(1)
        port = world.chain_world.port(MemoryWallet(Hotkey("x"), Coldkey("x")))
        answers, held = asyncio.Event(), port.metagraph

        async def slow(netuid: int) -> Metagraph:
            await answers.wait()
            return await held(netuid)

        membership = Membership(port, world.spec.netuid, world.clock)
        old = await membership.seat(world.miners[0].signer.hotkey)
        assert old is not None
        port.metagraph = slow  # type: ignore[method-assign]
        neurons = world.chain_world.subnet(world.spec.netuid).neurons
        neurons[-1] = dataclasses.replace(neurons[-1], registered_block=old.registered_block + 7)
        world.clock.advance(6.0)
        await membership.refresh_for_round()
        assert membership.known(old.hotkey) == old, "the chain does not answer: the held seats do"
        answers.set()
        await membership.seat(A)  # waits for the look that goes on
        assert membership.known(old.hotkey) == dataclasses.replace(old, registered_block=old.registered_block + 7)

    asyncio.run(go())


def test_strangers_do_not_drive_the_chain_and_a_chain_away_keeps_the_seats(dataset: Dataset) -> None:
    world = World(dataset)

    async def go() -> None:
        await world.begin(1)
        port = world.chain_world.port(MemoryWallet(Hotkey("x"), Coldkey("x")))
        membership = Membership(port, world.spec.netuid, world.clock)
        world.chain_world.fail_next["metagraph"] = [Retryable("away")]
        try:
            await membership.seat(A)
        except Retryable:
            pass
        else:
            raise AssertionError("without any metagraph nobody can be called a stranger")
        world.clock.advance(6.0)
        assert await membership.seat(A) is None
        world.chain_world.fail_next["metagraph"] = [Retryable("away")]
        assert await membership.seat(B) is None, "asked again within seconds: the chain is left alone"
        assert world.chain_world.fail_next["metagraph"]
        world.clock.advance(6.0)
        assert await membership.seat(world.miners[0].signer.hotkey) is not None

    asyncio.run(go())


def test_a_round_waits_for_nobody_that_let_two_rounds_down() -> None:
    members = Members(60.0)
    for seq, round_id in enumerate((4, 5), start=1):
        members.hear(A, beat(seq, 10, round_id), 0.0, float(seq))
        members.note_committed(RoundId(round_id), {B: True})
    members.hear(A, beat(3, 10, 6), 0.0, 3.0)
    assert [m.awaited for m in members.facts(RoundId(6), {}, 3.0)] == [False]
    members.note_committed(RoundId(6), {A: True})
    assert [m.awaited for m in members.facts(RoundId(6), {}, 3.0)] == [True], "one delivery and it is awaited again"


def test_invented_sessions_never_grow_beyond_what_a_report_can_hold() -> None:
    members = Members(60.0)
    for number in range(40):
        huge = beat(1, 2**48, session=f"{number:016x}")
        members.hear(
            A, huge.model_copy(update={"counters": Counters(tokens=2**48, training_s=1e9, online_s=1e9)}), 0.0, 1.0
        )
    member = members.get(A)
    assert member is not None
    growth = member.account.growth()
    assert growth.tokens <= 2**51
    assert growth.training_s * 1000 < 2**53
