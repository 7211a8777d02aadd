"""The butterfly on a run in one process: whatever its owners do, the round commits the bytes of a leader alone."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from common.data.dataset import Dataset
from common.runlog.verify import verify_run
from common.spec import ReduceSpec
from tests.validator.butterflies import (
    EVERYBODY,
    NOBODY,
    UNDRAWN,
    Twist,
    bytes_of_a_leader_alone,
    liars,
    lie,
    other_lie,
    play_round,
    reduction_events,
    third_lie,
)
from tests.validator.world import World

PAIRS = ReduceSpec("butterfly", 4, 2, 1)
ALL_DRAWN = ReduceSpec("butterfly", 4, 2, 4)
TRIPLES = ReduceSpec("butterfly", 4, 3, 0)
TRIPLES_DRAWN = ReduceSpec("butterfly", 4, 3, 4)
LIES = (lie, other_lie, third_lie)


@pytest.fixture(scope="module")
def alone(dataset: Dataset) -> tuple[object, ...]:
    return bytes_of_a_leader_alone(dataset)


@pytest.mark.parametrize(
    ("how", "twists", "gone", "named"),
    [
        pytest.param(PAIRS, {}, NOBODY, set(), id="all honest"),
        pytest.param(PAIRS, {}, EVERYBODY, set(), id="all owners gone"),
        pytest.param(PAIRS, {}, frozenset({0, 1}), set(), id="one provider gone"),
        pytest.param(PAIRS, {1: lie}, NOBODY, {1}, id="one liar"),
        pytest.param(ALL_DRAWN, {0: lie, 1: other_lie, 2: lie}, frozenset({3}), {0, 1, 2}, id="lies and silence"),
        pytest.param(ALL_DRAWN, dict.fromkeys(range(4), lie), NOBODY, set(EVERYBODY), id="all lie alike"),
        pytest.param(TRIPLES, {}, NOBODY, set(), id="three owners, all honest"),
        pytest.param(TRIPLES, {}, EVERYBODY, set(), id="three owners, all gone"),
        pytest.param(TRIPLES, {}, frozenset({0, 1, 2}), set(), id="three owners, one left of all"),
        pytest.param(TRIPLES, {3: lie}, frozenset({0, 1, 2}), {3}, id="three owners, and who is left lies"),
        pytest.param(TRIPLES, {0: lie}, NOBODY, {0}, id="three owners, one liar"),
        pytest.param(TRIPLES, {0: lie, 1: lie}, NOBODY, {0, 1}, id="three owners, two lie alike against one"),
        pytest.param(TRIPLES, {0: lie, 1: lie}, frozenset({2, 3}), {0, 1}, id="three owners, two lie and two are gone"),
        pytest.param(
            TRIPLES, dict(zip(range(4), itertools.cycle(LIES), strict=False)), NOBODY, set(EVERYBODY),
            id="three owners, as many lies",
        ),
        pytest.param(
            TRIPLES_DRAWN, dict.fromkeys(range(4), lie), NOBODY, set(EVERYBODY), id="three owners, all lie alike"
        ),
    ],
)  # fmt: skip
def test_the_round_commits_what_a_leader_alone_would(
    dataset: Dataset,
    alone: tuple[object, ...],
    how: ReduceSpec,
    twists: dict[int, Twist],
    gone: frozenset[int],
    named: set[int],
) -> None:
    world = World(dataset, reduce=how)
    asyncio.run(play_round(world, twists, gone))
    assert world.log().head_node.shards == alone
    assert liars(world) == named
    assert verify_run(world.store, world.spec.run).merges == 1


@pytest.mark.parametrize(
    ("how", "gone", "taken", "checked"),
    [
        pytest.param(UNDRAWN, NOBODY, 3, 0, id="nothing drawn"),
        pytest.param(ALL_DRAWN, NOBODY, 0, 3, id="all drawn"),
        pytest.param(ALL_DRAWN, frozenset({0, 1, 2}), 0, 0, id="all drawn, and no two copies to check"),
    ],
)
def test_the_leader_says_how_much_it_took_and_how_much_of_what_agrees_it_checked(
    dataset: Dataset, how: ReduceSpec, gone: frozenset[int], taken: int, checked: int
) -> None:
    with reduction_events() as events:
        asyncio.run(play_round(World(dataset, reduce=how), {}, gone))
    assert events == [("reduced", taken, checked)]
