"""Two leaders by force: the lease is tampered with while both run, and their clocks are minutes apart. One history."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from common import keys
from common.clock import Clock
from common.data.dataset import Dataset
from common.errors import RemoteError
from common.runlog.verify import verify_run
from tests.support.specs import VALIDATOR
from tests.validator.test_following import WATCHER, may_lead
from tests.validator.world import World, turn
from validator.process import assemble

KEY = keys.lease_key("demo")
Tamper = Callable[[World, list[bytes]], None]


@dataclass(frozen=True)
class Skewed:
    """A clock that is off."""

    clock: Clock
    ahead_s: float

    def monotonic_s(self) -> float:
        return self.clock.monotonic_s() + 7e4 + self.ahead_s

    def wall_ns(self) -> int:
        return self.clock.wall_ns() + int(self.ahead_s * 1e9)


def delete(world: World, seen: list[bytes]) -> None:
    world.store.delete(KEY)


def garbage(world: World, seen: list[bytes]) -> None:
    world.store.put(KEY, b"%d is no lease" % len(seen))


def replayed(world: World, seen: list[bytes]) -> None:
    """An older lease of somebody is put back."""
    world.store.put(KEY, seen[len(seen) // 2])


CASES: dict[str, tuple[Tamper, float]] = {
    "deleted, the standby's clock 5 minutes ahead": (delete, 300.0),
    "garbage": (garbage, -300.0),
    "an older lease put back, the standby's clock 5 minutes behind": (replayed, -300.0),
}


@pytest.mark.parametrize("case", CASES)
def test_a_lease_tampered_with_makes_no_second_history(dataset: Dataset, case: str) -> None:
    tamper, ahead_s = CASES[case]
    world = World(dataset, validators=(VALIDATOR.hotkey, WATCHER.hotkey))

    async def go() -> None:
        await world.begin()
        await world._register(WATCHER)
        one = world.validator()
        parts = may_lead(world)
        other = assemble(dataclasses.replace(parts, clock=Skewed(world.clock, ahead_s)))
        pair, seen = {VALIDATOR.hotkey: one, WATCHER.hotkey: other}, [b"no lease yet"]
        committed: list[str] = []
        for tick in range(600):
            for validator in pair.values():
                await validator.driver.step()
                await validator.board.leadership.renew()
            lineage = [str(node.sha256) for node in world.log().lineage(world.log().head)]
            assert lineage[: len(committed)] == committed, "what was committed changed"
            committed = lineage
            if world.log().head >= 2 and len(world.log().leaders) > 1:
                return
            found = world.store.head(KEY)
            if found is not None and tick % 4 == 0:
                seen.append(world.store.get(KEY, max_bytes=1 << 20).body)
            if tick and tick % 9 == 0 and tick < 60:
                tamper(world, seen)
            leader = pair.get(world.log().leader or VALIDATOR.hotkey, one)
            for miner in world.miners:
                try:
                    await turn(miner, leader)
                except RemoteError:
                    continue  # it asks again, as miners do
            world.clock.advance(0.5)
        raise AssertionError(f"{one.board.waiting_for}; {other.board.waiting_for}")

    asyncio.run(go())
    state = world.log()
    assert [leader.term for leader in state.leaders] == list(range(1, state.term + 1))
    assert verify_run(world.store, "demo").merges == 2
