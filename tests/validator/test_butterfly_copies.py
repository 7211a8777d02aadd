"""Means that can't be had, or are none, when the leader comes for them: it computes them, and only lies are lies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

import numpy as np
import pytest

from common.codec.params import F32
from common.data.dataset import Dataset
from common.errors import Rejected, Retryable
from tests.validator.butterflies import (
    EVERYBODY,
    MINERS,
    NOBODY,
    UNDRAWN,
    Twist,
    bytes_of_a_leader_alone,
    exact,
    hand_in,
    liars,
    lie,
    owners,
    reductions_told,
    stored,
    until_committed,
    until_dealt,
    work,
)
from tests.validator.world import World

Harm = Callable[[World, str], None]


def cut(world: World, key: str) -> None:
    world.store.corrupt(key, lambda body: body[:-4])


def emptied(world: World, key: str) -> None:
    world.store.corrupt(key, lambda body: b"")


def lengthened(world: World, key: str) -> None:
    world.store.corrupt(key, lambda body: body + bytes(4))


def replaced(world: World, key: str) -> None:
    """By another finite vector of the same length."""
    world.store.corrupt(key, lambda body: bytes(len(body)))


def flipped(world: World, key: str) -> None:
    world.store.corrupt(key, lambda body: body[:-1] + bytes([body[-1] ^ 1]))


def missing(world: World, key: str) -> None:
    world.store.delete(key)


def kept_back(world: World, key: str) -> None:
    """The storage answers, but never gives this object."""
    usual = world.store.before

    def before(operation: str, name: str) -> None:
        if operation == "get" and name == key:
            raise Retryable("the storage does not give it")
        if usual is not None:
            usual(operation, name)

    world.store.before = before


def denied(world: World, key: str) -> None:
    """The storage refuses it with a code that says nothing of the object."""
    usual = world.store.before

    def before(operation: str, name: str) -> None:
        if operation == "get" and name == key:
            raise Rejected("access_denied", "the keys are being changed")
        if usual is not None:
            usual(operation, name)

    world.store.before = before


HARMS = (cut, emptied, lengthened, replaced, flipped, missing, kept_back, denied)


@pytest.fixture(scope="module")
def alone(dataset: Dataset) -> tuple[object, ...]:
    return bytes_of_a_leader_alone(dataset)


def first_of_each(keys: Collection[str]) -> list[str]:
    """One copy of every partition."""
    return list({key.rpartition("/means/")[2].partition("/")[0]: key for key in sorted(keys)}.values())


def play(dataset: Dataset, harm: Harm, whose: Callable[[Collection[str]], Collection[str]], twist: Twist) -> World:
    """Everybody hands in, the leader has looked at what is there, and then it goes wrong."""
    world = World(dataset, reduce=UNDRAWN)

    async def go() -> None:
        await world.begin(MINERS)
        validator = world.validator(until=1)
        asked = await until_dealt(world, validator)
        for number, view in asked.items():
            await hand_in(validator, world.miners[number], work(world, world.miners[number], view, twist))
        for key in whose(stored(world, "mean")):
            harm(world, key)
        await until_committed(world, validator, owners(world, late=EVERYBODY))

    asyncio.run(go())
    world.store.before = None
    assert (world.log().rounds_committed, world.log().rounds_aborted) == (1, 0)
    return world


@pytest.mark.parametrize("harm", HARMS)
def test_a_mean_that_no_owner_s_copy_gives_is_computed_and_nobody_is_blamed(
    dataset: Dataset, alone: tuple[object, ...], harm: Harm
) -> None:
    with reductions_told() as told:
        world = play(dataset, harm, list, exact)
    assert told[0].startswith("round 0: 0 of 3 partitions reduced by miners, 3 here: 3 for copies that can't be had")
    assert told[0].endswith("late: nobody")
    assert world.log().head_node.shards == alone
    assert liars(world) == NOBODY


@pytest.mark.parametrize("harm", HARMS)
def test_the_other_owner_s_copy_does_when_one_can_t_be_had(
    dataset: Dataset, alone: tuple[object, ...], harm: Harm
) -> None:
    with reductions_told() as told:
        world = play(dataset, harm, first_of_each, exact)
    assert told[0].startswith("round 0: 3 of 3 partitions reduced by miners; late: nobody")
    assert world.log().head_node.shards == alone
    assert liars(world) == NOBODY


def test_who_lied_about_what_can_t_be_had_is_named_by_the_hash_that_it_signed(
    dataset: Dataset, alone: tuple[object, ...]
) -> None:
    world = play(dataset, missing, list, lie)
    assert world.log().head_node.shards == alone
    assert liars(world) == EVERYBODY


def not_a_number(values: F32) -> F32:
    return values * np.float32("nan")


def one_infinite(values: F32) -> F32:
    made = values.copy()
    made[-1] = -np.inf
    return made


def one_signalling(values: F32) -> F32:
    """A signalling NaN in the middle."""
    made = values.copy()
    made.view(np.uint32)[len(made) // 2] = 0x7F800001
    return made


@pytest.mark.parametrize("twist", [not_a_number, one_infinite, one_signalling])
def test_a_mean_that_is_not_finite_is_computed_and_is_a_lie_however_many_agree_on_it(
    dataset: Dataset, alone: tuple[object, ...], twist: Twist
) -> None:
    """No honest owner hands it in: the mean of finite deltas is finite, or the plan can't be merged at all."""
    world = play(dataset, lambda world, key: None, list, twist)
    assert world.log().head_node.shards == alone
    assert liars(world) == EVERYBODY
