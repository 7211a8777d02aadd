"""The reader of the log ends when it is told to, whatever comes at that moment."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from miner.follow import LogView
from miner.follower import Follower
from miner.patience import Patience

HANG_S = 30.0


def a_follower(read: list[object]) -> Follower:
    """Of a session whose view is at slot 1, and whose log never has news."""
    log = SimpleNamespace(steps=lambda state: iter(()))
    state: Any = SimpleNamespace(next_seq=1)
    context: Any = SimpleNamespace(
        signer=SimpleNamespace(hotkey="5F"),
        log=log,
        spec=SimpleNamespace(round=SimpleNamespace(heartbeat_s=HANG_S)),
        uniform=lambda: 0.5,
        patience=lambda what: Patience(what, asyncio.sleep, lambda: 0.5),
    )
    session: Any = SimpleNamespace(view=LogView(state), heard=lambda reply: None, read=read.append)
    return Follower(context, session)


@pytest.mark.parametrize("turns", range(6))
def test_a_hint_that_comes_with_the_end_does_not_keep_it(turns: int) -> None:
    """A miner's last heartbeat brings one."""

    async def hint_and_cancel() -> bool:
        follower = a_follower([])
        following = asyncio.create_task(follower.run())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        follower.heard(SimpleNamespace(next_seq=2))  # type: ignore[arg-type]  # all that it looks at
        for _ in range(turns):
            await asyncio.sleep(0)
        following.cancel()
        await asyncio.wait({following}, timeout=HANG_S)
        return following.cancelled()

    assert asyncio.run(hint_and_cancel())


def test_a_hint_has_the_log_read_at_once() -> None:
    async def hint() -> int:
        read: list[object] = []
        follower = a_follower(read)
        following = asyncio.create_task(follower.run())
        follower.heard(SimpleNamespace(next_seq=2))  # type: ignore[arg-type]  # all that it looks at
        while not read and not following.done():
            await asyncio.sleep(0.001)
        following.cancel()
        await asyncio.wait({following}, timeout=HANG_S)
        assert following.cancelled(), "it never ends by itself"
        return len(read)

    assert asyncio.run(hint()) == 1
