"""The kept weights: a rebuild that waits for the storage holds up nobody who has something at hand."""

from __future__ import annotations

import asyncio
import threading

from common.errors import Retryable
from common.units import Revision
from tests.validator.world import World
from validator.heads import Heads


def test_keeping_a_result_does_not_wait_for_a_rebuild(world: World) -> None:
    asyncio.run(world.begin())
    heads, state = (
        Heads(
            world.validator().board.reader,
        ),
        world.log(),
    )
    known = heads.get(state, Revision(0))
    slow = Heads(world.validator().board.reader)
    entered, go_on = threading.Event(), threading.Event()

    def wait(operation: str, key: str) -> None:
        entered.set()
        assert go_on.wait(60.0)

    world.store.before = wait
    rebuilding = threading.Thread(target=slow.get, args=(state, Revision(0)))
    rebuilding.start()
    assert entered.wait(60.0)
    slow.keep(Revision(1), known)
    assert slow.get(state, Revision(1)) is known
    assert rebuilding.is_alive()
    go_on.set()
    rebuilding.join()
    world.store.before = None
    assert slow.get(state, Revision(0))[0].weights.tobytes() == known[0].weights.tobytes()


def test_a_rebuild_that_failed_is_tried_again(world: World) -> None:
    asyncio.run(world.begin())
    heads, state = Heads(world.validator().board.reader), world.log()

    def away(operation: str, key: str) -> None:
        raise Retryable("no connection to the storage")

    world.store.before = away
    for _ in range(2):
        try:
            heads.get(state, Revision(0))
        except Retryable:
            continue
        raise AssertionError("nothing was there to rebuild from")
    world.store.before = None
    assert heads.get(state, Revision(0))
