"""The last heartbeat is best effort: it neither holds up nor spoils the end of a miner."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from common import timeouts
from common.clock import ManualClock
from common.errors import Retryable
from common.units import Hotkey
from miner.discovery import LeaderLink
from miner.heart import Heart
from miner.meter import UploadMeter
from miner.patience import Patience


class Link:
    """No leader to be had: it hangs, or fails."""

    def __init__(self, error: Exception | None) -> None:
        self._error = error
        self.asked = 0

    async def client(self, leader: Hotkey) -> Any:
        self.asked += 1
        if self._error is not None:
            raise self._error
        await asyncio.Event().wait()


@pytest.mark.parametrize("error", [None, Retryable("away")])
def test_a_leader_that_is_not_there_keeps_no_miner_from_going(
    error: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeouts, "GOODBYE_S", 0.01)
    link = Link(error)

    def never(*_: object) -> Any:
        raise AssertionError("nothing is sent, nothing is answered")

    heart = Heart(
        cast(LeaderLink, link),
        UploadMeter(lambda: 0.0),
        ManualClock(),
        asyncio.sleep,
        1.0,
        Patience("heartbeat", asyncio.sleep),
        leader=lambda: Hotkey("5Leader"),
        describe=never,
        on_reply=never,
    )
    asyncio.run(heart.farewell())
    assert link.asked == 1
