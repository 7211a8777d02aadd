"""A leader that no miner reaches gives the lead up, and the standby takes it; without miners that is ever more rare."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from common.data.dataset import Dataset
from common.errors import RemoteError
from common.runlog.verify import verify_run
from tests.support.specs import VALIDATOR
from tests.validator.test_following import WATCHER, may_lead
from tests.validator.world import World, turn
from validator.alone import AWAY_S, LEAST_S, MOST_S, Alone, Facts, patience_s
from validator.process import Validator, assemble


def look(alone: Alone, now_s: float, heard_s: float | None = None, others: int = 1, needs_nobody: bool = False) -> str:
    return alone.lonely(Facts(now_s, heard_s, others, needs_nobody))


def led(alone: Alone, start_s: float, heard_every_s: float | None = None, limit_s: float = 3 * MOST_S) -> float | None:
    """Look once a second, from the beginning of a lead; after how long it is given up."""
    for second in range(int(limit_s)):
        heard_s = None if heard_every_s is None else start_s + second - second % heard_every_s
        if look(alone, start_s + second, heard_s):
            return float(second)
    return None


def test_patience_doubles_while_nobody_is_heard_and_one_heartbeat_makes_it_short_again() -> None:
    alone, now_s, waited = Alone(10.0), 500.0, []
    for _ in range(10):
        gave_up_s = led(alone, now_s)
        assert gave_up_s is not None
        waited.append(gave_up_s)
        now_s += gave_up_s
        assert alone.away(now_s + AWAY_S - 0.5)
        assert not alone.away(now_s + AWAY_S)
        now_s += AWAY_S
    assert waited[:3] == [LEAST_S, 2 * LEAST_S, 4 * LEAST_S]
    assert waited[-1] == MOST_S
    assert not look(alone, now_s, None)
    assert not look(alone, now_s + 1.0, now_s + 1.0)
    assert alone.in_vain == 0


def test_who_is_heard_or_has_nobody_to_leave_it_to_or_waits_for_nobody_stays() -> None:
    assert led(Alone(10.0), 0.0, heard_every_s=LEAST_S / 2, limit_s=1000) is None
    for changes in ({"others": 0}, {"needs_nobody": True}):
        alone = Alone(10.0)
        assert not any(look(alone, float(second), **changes) for second in range(1000))  # type: ignore[arg-type]
        # From then on the silence counts anew.
        assert not look(alone, 1000.0)


def test_a_process_that_slept_does_not_take_its_own_sleep_for_silence() -> None:
    alone = Alone(10.0)
    assert not look(alone, 0.0)
    assert not look(alone, 10 * MOST_S)
    assert not look(alone, 10 * MOST_S + 5.0)


@given(st.floats(1.0, 1e5), st.integers(0, 10**6))
def test_patience_is_never_shorter_than_silence_of_one_miner_and_bounded(timeout_s: float, in_vain: int) -> None:
    found = patience_s(timeout_s, in_vain)
    assert found > timeout_s
    assert found <= max(MOST_S, 3 * timeout_s)
    assert patience_s(timeout_s, in_vain + 1) >= found


async def live(
    world: World, pair: dict[str, Validator], seconds: int, reach: set[str], head: int = 10**6, step_s: float = 0.5
) -> None:
    """Both validators and all miners, whom only the validators in ``reach`` hear."""
    for _ in range(int(seconds / step_s)):
        for validator in pair.values():
            await validator.driver.step()
            await validator.board.leadership.renew()
        leader = world.log().leader
        for miner in world.miners:
            if leader is None or leader not in reach:
                break
            try:
                await turn(miner, pair[leader])
            except RemoteError:
                continue  # it asks again, as miners do
        if world.log().head >= head:
            return
        world.clock.advance(step_s)


async def two(dataset: Dataset) -> tuple[World, dict[str, Validator]]:
    world = World(dataset, validators=(VALIDATOR.hotkey, WATCHER.hotkey))
    await world.begin()
    await world._register(WATCHER)
    return world, {VALIDATOR.hotkey: world.validator(), WATCHER.hotkey: assemble(may_lead(world))}


def test_a_leader_that_is_cut_off_from_all_miners_is_replaced_and_the_run_goes_on(dataset: Dataset) -> None:
    async def go() -> World:
        world, pair = await two(dataset)
        everybody = set(pair)
        await live(world, pair, 600, everybody, head=1)
        assert world.log().leader == VALIDATOR.hotkey
        await live(world, pair, 600, everybody - {VALIDATOR.hotkey}, head=3)
        assert world.log().head == 3
        assert world.log().leader == WATCHER.hotkey
        assert not pair[VALIDATOR.hotkey].board.leadership.leading
        assert "following" in pair[VALIDATOR.hotkey].board.waiting_for
        return world

    world = asyncio.run(go())
    assert [leader.hotkey for leader in world.log().leaders] == [VALIDATOR.hotkey, WATCHER.hotkey]
    assert verify_run(world.store, "demo").merges == 3


def test_without_miners_the_lead_changes_ever_more_rarely(dataset: Dataset) -> None:
    async def go() -> list[int]:
        world, pair = await two(dataset)
        counts = []
        for _ in range(2):
            before = world.log().term
            await live(world, pair, 900, set(), step_s=2.0)
            counts.append(world.log().term - before)
        # Whoever leads by then serves the miners when they come.
        head = world.log().head
        await live(world, pair, 900, set(pair), head=head + 1)
        assert world.log().head == head + 1
        return counts

    counts = asyncio.run(go())
    assert counts[0] > counts[1], counts
    assert counts[1] <= 2
