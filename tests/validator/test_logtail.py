"""What is read back from the log's end: everything that counts, or nothing at all."""

from __future__ import annotations

import pytest

from common import keys
from common.errors import Retryable
from common.units import RoundId
from tests.runlog.world import World, eventful_world
from validator.logtail import plans_since


def rounds(world: World, since: int) -> list[int]:
    return [plan.round for plan in plans_since(world.reader, world.state, RoundId(since))]


def test_plans_are_told_newest_first_as_far_back_as_they_are_asked_for() -> None:
    world = eventful_world()
    assert world.state.voids, "a slot that counts for nothing lies between"
    assert rounds(world, 0) == [3, 2, 1, 0]
    assert rounds(world, 2) == [3, 2]
    assert rounds(world, 4) == []


def test_a_slot_that_reads_damaged_is_waited_for_and_not_passed_over() -> None:
    """Who took it for one that counts for nothing would miss a plan, and delete what the plan names."""
    world = eventful_world()
    plan = world.state.revisions[world.state.head].plan_seq
    assert plan is not None
    world.store.corrupt(keys.log_key(world.spec.run, plan), lambda body: body.replace(b"accepted", b"deferred", 1))
    with pytest.raises(Retryable, match=f"slot {plan} of the log was damaged"):
        rounds(world, 0)
