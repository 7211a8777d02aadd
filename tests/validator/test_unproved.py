"""A leader deletes a delta before anybody has merged it again: nobody leads on from it, and it is looked at again."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import pytest

from common import keys
from common.data.dataset import Dataset
from common.runlog.remerge import read_plan
from common.store.reader import StoreReader
from common.units import Revision, Sha256
from tests.support.specs import VALIDATOR
from tests.validator.test_following import WATCHER, caught_up, follower, may_lead
from tests.validator.world import World, drive
from validator import merging
from validator.audits.unproved import FIRST_PAUSE_S, MOST_PAUSE_S, Unproved
from validator.process import Validator, assemble


def take_away(world: World, revision: int) -> tuple[str, bytes]:
    """Delete an accepted delta of a revision; its key and bytes."""
    run = world.log()
    plan = read_plan(StoreReader(world.store), run, run.revisions[Revision(revision)])
    member = next(member for member in plan.members if member.decision == "accepted")
    key = keys.delta_key(run.run, member.round, member.shard, member.hotkey, member.delta.sha256)
    body = world.store.get(key, max_bytes=1 << 30).body
    world.store.delete(key)
    return key, body


async def look(validator: Validator, world: World, seconds: float) -> None:
    """Let it work for so long by its clock."""
    for _ in range(int(seconds)):
        await validator.driver.step()
        world.clock.advance(1.0)


def two(dataset: Dataset) -> World:
    return World(dataset, validators=(VALIDATOR.hotkey, WATCHER.hotkey))


def test_what_is_missing_is_told_not_led_on_from_and_proved_once_it_is_there_again(dataset: Dataset) -> None:
    world = two(dataset)

    async def go() -> None:
        await world.begin()
        await drive(world, world.validator(), 2)
        key, body = take_away(world, 2)
        standby = assemble(may_lead(world))
        await look(standby, world, 60)
        status = standby.service.status()
        assert not status.leading
        assert "revision 2 is unproved: " in status.waiting_for
        assert key in status.waiting_for
        assert "not led on from here until it is there again" in status.waiting_for
        assert status.convicted == [], "nobody can prove who took it away"
        assert world.log().head == 2

        world.store.put(key, body)
        await look(standby, world, MOST_PAUSE_S)
        assert standby.service.status().leading
        assert standby.service.status().convicted == []

    asyncio.run(go())


def test_a_wrong_merge_hidden_so_convicts_when_the_delta_comes_back(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, honest = two(dataset), merging.store_revision

    def lying(*facts: object) -> merging.Merged:
        made = honest(*facts)  # type: ignore[arg-type]
        [shard] = made.commit.shards
        wrong = dataclasses.replace(shard, weights_sha256=Sha256("f" * 64))
        return dataclasses.replace(made, commit=dataclasses.replace(made.commit, shards=(wrong,)))

    async def go() -> None:
        await world.begin()
        leader = world.validator()
        await drive(world, leader, 1)
        monkeypatch.setattr(merging, "store_revision", lying)
        await drive(world, leader, 2)
        key, body = take_away(world, 2)
        watching = follower(world, tmp_path)
        await look(watching, world, 30)
        assert "unproved" in watching.board.waiting_for
        assert watching.service.status().convicted == []
        world.store.put(key, body)
        await look(watching, world, MOST_PAUSE_S)
        [told] = watching.service.status().convicted
        assert f"{VALIDATOR.hotkey} merged revision 2 wrongly" in told

    asyncio.run(go())


def test_what_comes_after_it_is_looked_at_meanwhile(dataset: Dataset, tmp_path: Path) -> None:
    world = two(dataset)

    async def go() -> None:
        await world.begin()
        leader = world.validator()
        await drive(world, leader, 1)
        watching = follower(world, tmp_path)
        await caught_up(watching, 1)
        await drive(world, leader, 2)
        key, body = take_away(world, 2)
        await drive(world, leader, 3)
        await look(watching, world, 30)
        assert "revision 2" in watching.board.waiting_for
        assert "unproved" in watching.board.waiting_for
        world.store.put(key, body)
        await look(watching, world, 2 * MOST_PAUSE_S)
        assert "unproved" not in watching.board.waiting_for
        assert watching.service.status().convicted == []

    asyncio.run(go())


def test_pauses_grow_up_to_a_bound_and_an_outage_teaches_nothing() -> None:
    found, now_s, pauses = Unproved(), 100.0, []
    revision = Revision(4)
    for _ in range(12):
        found.add(revision, "a delta is missing", now_s)
        assert found.due(now_s) is None
        pause = next(s for s in (FIRST_PAUSE_S * 2**n for n in range(12)) if found.due(now_s + min(s, MOST_PAUSE_S)))
        pauses.append(min(pause, MOST_PAUSE_S))
        now_s += pauses[-1]
        assert found.due(now_s) == revision
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (FIRST_PAUSE_S, MOST_PAUSE_S)
    found.put_off(revision, now_s)
    assert found.due(now_s + FIRST_PAUSE_S) == revision
    assert found.of([Revision(3), Revision(5)]) == ""
    assert found.of([Revision(3), revision]) == "revision 4 is unproved: a delta is missing"
    assert found.forget_up_to(Revision(3)) == []
    found.add(Revision(2), "a delta is missing", now_s)
    assert found.forget_up_to(Revision(3)) == [2], "retention deletes what would prove it"
    found.settle(revision)
    assert found.due(now_s + MOST_PAUSE_S) is None
