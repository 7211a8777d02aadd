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
from common.wire import Counters, Heartbeat, Phase, UploadProgress
from tests.support.memchain import MemoryWallet
from tests.validator.world import World
from validator.ledger import Totals, restored
from validator.members import Members
from validator.membership import Membership
from validator.round.tokens import Terms
from validator.submissions import Held

A, B = Hotkey("a"), Hotkey("b")
ROUND = RoundId(4)


HELD = Held(delivered=True, tokens=10, announced=True, coming_bytes=0, coming_since_s=0.0)


def beat(
    seq: int,
    tokens: int = 0,
    round_id: int | None = 4,
    phase: Phase = Phase.TRAINING,
    session: str = "ab" * 8,
    ahead: int = 0,
    upload: UploadProgress | None = None,
) -> Heartbeat:
    return Heartbeat(
        ahead_tokens=ahead,
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
        counters=Counters(tokens=tokens + ahead, training_s=1.0, online_s=1.0),
        upload=upload,
        note="",
    )


def test_silence_ends_life_and_a_heartbeat_gives_it_back() -> None:
    members = Members(2.0)
    members.hear(A, beat(1, 10), 1.0)
    assert [m.live for m in members.facts(ROUND, {}, 2.9)] == [True]
    assert members.facts(ROUND, {}, 3.0) == ()
    assert [m.hotkey for m in members.facts(ROUND, {A: HELD}, 3.0)] == [A], "what it delivered still counts"
    members.hear(A, beat(2, 20), 4.0)
    assert [(m.live, m.tokens) for m in members.facts(ROUND, {}, 4.0)] == [(True, 20)]


def test_nobody_waits_for_whom_has_said_good_bye() -> None:
    members = Members(2.0)
    members.hear(A, beat(1, 10), 1.0)
    members.hear(A, beat(2, 10, phase=Phase.DRAINING), 1.1)
    assert members.facts(ROUND, {}, 1.2) == ()
    members.hear(A, beat(1, 0, session="cd" * 8), 1.5)
    assert [m.live for m in members.facts(ROUND, {}, 1.6)] == [True], "its next process is another session"


def test_one_that_drains_is_alive_while_it_delivers() -> None:
    members = Members(2.0)
    sending = UploadProgress(size_bytes=100, sent_bytes=10, rate_bps=8.0)
    members.hear(A, beat(1, 10, phase=Phase.DRAINING, upload=sending), 1.0)
    assert [(m.live, m.delivered) for m in members.facts(ROUND, {}, 1.1)] == [(True, False)]
    members.hear(A, beat(2, 10, phase=Phase.DRAINING), 1.5)
    assert members.facts(ROUND, {}, 1.6) == ()
    assert [(m.live, m.dripped_tokens) for m in members.facts(ROUND, {A: HELD}, 1.6)] == [(False, 10)]


def test_work_ahead_of_the_last_submission_is_work_for_the_next_round() -> None:
    members = Members(2.0)
    members.hear(A, beat(1, 50, round_id=3, ahead=7), 1.0)
    assert [(m.trains, m.tokens) for m in members.facts(ROUND, {}, 1.0)] == [(True, 7)]
    members.hear(A, beat(2, 0, round_id=None, ahead=9), 1.5)
    assert [(m.trains, m.tokens) for m in members.facts(ROUND, {}, 1.5)] == [(True, 9)]
    members.hear(A, beat(3, 12), 2.0)
    assert [(m.trains, m.tokens) for m in members.facts(ROUND, {}, 2.0)] == [(True, 12)]


def test_tokens_and_what_is_held_are_cut_to_what_a_plan_could_count() -> None:
    members = Members(20.0)
    members.hear(A, beat(1), 0.0)
    members.hear(A, beat(2, 10_000), 10.0)
    terms = Terms(target_tokens=1000, members=2, longest_s=60.0, slack=1.0, usual_rate=10.0)
    held = {A: Held(False, 9000, True, 0, 0.0)}
    (facts,) = members.facts(ROUND, held, 10.0, terms)
    assert (facts.tokens, facts.dripped_tokens) == (200, 200), "10 s at twice the usual rate"
    assert facts.rate == 20.0
    assert facts.can_be_late
    assert members.facts(ROUND, held, 10.0)[0].tokens == 10_000


def test_an_upload_is_expected_by_what_was_seen_of_earlier_ones() -> None:
    members = Members(20.0)
    members.hear(A, beat(1, 10), 0.0)
    assert members.facts(ROUND, {}, 0.0)[0].eta_s is None, "nothing was seen"
    members.note_upload(A, 1000, 10.0)
    assert members.facts(ROUND, {}, 0.0)[0].eta_s == 10.0, "the next will be as large"
    coming = {A: Held(False, 0, True, 500, 2.0)}
    assert members.facts(ROUND, coming, 4.0)[0].eta_s == 3.0
    assert members.facts(ROUND, coming, 8.0)[0].eta_s is None, "longer than predicted: nobody knows"
    members.note_upload(A, 1000, 2.5)
    assert members.facts(ROUND, coming, 3.0)[0].eta_s == 1.0, "the newest counts most"


def test_the_rate_is_what_was_watched_else_proven_else_said() -> None:
    members = Members(20.0)
    members.hear(A, beat(1, 50), 1.0)
    assert members.facts(ROUND, {}, 1.0)[0].rate == 1.0
    members.prove({A: 30.0})
    assert members.facts(ROUND, {}, 1.0)[0].rate == 30.0
    members.hear(B, beat(1), 0.0)
    members.hear(B, beat(2, 50), 2.0)
    assert members.facts(ROUND, {}, 2.0)[1].rate == 25.0
    assert members.claimed_rates(ROUND, 2.0) == {A: 0.0, B: 25.0}


def test_after_a_takeover_the_expected_count_as_live_for_one_timeout() -> None:
    members = Members(2.0)
    members.expect([A, B], 10.0)
    assert [(m.hotkey, m.live, m.heard, m.trains) for m in members.facts(ROUND, {}, 11.0)] == [
        (A, True, False, False),
        (B, True, False, False),
    ]
    members.hear(A, beat(1, 10), 11.0)
    assert [m.hotkey for m in members.facts(ROUND, {}, 12.5)] == [A]


def test_a_heartbeat_that_overtook_another_changes_nothing() -> None:
    members = Members(2.0)
    members.hear(A, beat(5, 50), 1.0)
    members.hear(A, beat(4, 40), 1.5)
    assert members.facts(ROUND, {}, 1.5)[0].tokens == 50


def test_work_for_another_round_is_not_work_for_this_one() -> None:
    members = Members(2.0)
    members.hear(A, beat(1, 50, round_id=3), 1.0)
    facts = members.facts(ROUND, {}, 1.0)[0]
    assert (facts.trains, facts.tokens) == (False, 0)


def test_support_is_kept_of_those_that_are_known() -> None:
    members = Members(2.0)
    members.hear(A, beat(1, 10), 1.0)
    members.support({A: 3.0, B: 5.0})
    assert members.supported() == {A: 3.0}


def test_proven_rates_are_kept_by_hotkey_of_those_that_are_known() -> None:
    members = Members(2.0)
    members.restore({A: restored("ab" * 8, Totals(40, 1.0, 1.0))}, 0.0)
    members.prove({A: 30.0, B: 50.0})
    members.hear(A, beat(9, 60), 1.0)
    assert members.proven() == {A: 30.0}


def test_the_books_go_on_from_the_newest_report() -> None:
    members = Members(2.0)
    members.restore({A: restored("ab" * 8, Totals(40, 1.0, 1.0))}, 0.0)
    members.hear(A, beat(9, 60), 1.0)
    member = members.get(A)
    assert member is not None
    assert member.account.growth().tokens == 20
    members.settle(A, member.account)
    assert member.account.growth().tokens == 0


def test_memory_is_bounded_by_the_seats_of_a_subnet() -> None:
    members = Members(2.0)
    for number in range(400):
        members.hear(Hotkey(f"m{number}"), beat(1, 10), float(number))
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


def test_few_strangers_wait_for_a_chain_that_hangs_and_members_do_not_notice(dataset: Dataset) -> None:
    world = World(dataset)

    async def go() -> None:
        await world.begin(1)
        port = world.chain_world.port(MemoryWallet(Hotkey("x"), Coldkey("x")))
        membership = Membership(port, world.spec.netuid, world.clock)
        member = world.miners[0].signer.hotkey
        assert await membership.seat(member) is not None
        world.clock.advance(6.0)
        asked, answers, held = asyncio.Event(), asyncio.Event(), port.metagraph

        async def slow(netuid: int) -> Metagraph:
            asked.set()
            await answers.wait()
            return await held(netuid)

        port.metagraph = slow  # type: ignore[method-assign]
        waiting = [
            asyncio.create_task(membership.seat(Hotkey(f"s{n}"))) for n in range(validator.membership.MOST_ASKING)
        ]
        await asked.wait()
        with pytest.raises(Retryable, match="the seats of many; ask again"):
            await membership.seat(A)
        assert await membership.seat(member) is not None
        answers.set()
        assert await asyncio.gather(*waiting) == [None] * len(waiting)
        assert await membership.seat(A) is None

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
        members.hear(A, beat(seq, 10, round_id), float(seq))
        members.note_committed(RoundId(round_id), {}, [B])
    members.hear(A, beat(3, 10, 6), 3.0)
    assert [m.awaited for m in members.facts(RoundId(6), {}, 3.0)] == [False]
    members.note_committed(RoundId(6), {}, [A])
    assert [m.awaited for m in members.facts(RoundId(6), {}, 3.0)] == [True], "one delivery and it is awaited again"


def test_invented_sessions_never_grow_beyond_what_a_report_can_hold() -> None:
    members = Members(60.0)
    for number in range(40):
        huge = beat(1, 2**48, session=f"{number:016x}")
        totals = Counters(tokens=2**48, training_s=1e9, online_s=1e9)
        members.hear(A, huge.model_copy(update={"counters": totals}), 1.0)
    member = members.get(A)
    assert member is not None
    growth = member.account.growth()
    assert growth.tokens <= 2**51
    assert growth.training_s * 1000 < 2**53
