"""How often the same thing is tried again, how long is waited between, and what is not waited for."""

from __future__ import annotations

import asyncio

import pytest

from common.errors import Fatal, Rejected, RemoteError, Retryable
from miner.patience import POLICY, Patience


def insist(*faults: RemoteError) -> list[float]:
    """The waits until an action that fails so often gives its result."""
    waits: list[float] = []
    left = list(faults)

    async def sleep(wait_s: float) -> None:
        waits.append(wait_s)

    async def action() -> str:
        if left:
            raise left.pop(0)
        return "there"

    patience = Patience("asking", sleep, lambda: 1.0)
    assert asyncio.run(patience.insist(action)) == "there"
    assert patience.trouble == ""
    return waits


def test_passing_faults_and_refusals_are_waited_for_longer_and_longer() -> None:
    first_s = POLICY.first_wait_s
    assert insist(Retryable("away"), Rejected("round_closed", "not now"), Retryable("away")) == [
        first_s,
        2 * first_s,
        4 * first_s,
    ]


def test_the_other_ends_wish_is_honoured() -> None:
    assert insist(Retryable("busy", retry_after_s=33.0)) == [33.0]


def test_what_is_fatal_is_not_waited_for() -> None:
    with pytest.raises(Fatal, match="update brigade"):
        insist(Retryable("away"), Fatal("update brigade"))


def test_after_a_success_the_next_wait_is_short_again() -> None:
    waits: list[float] = []

    async def sleep(wait_s: float) -> None:
        waits.append(wait_s)

    async def run() -> None:
        patience = Patience("asking", sleep, lambda: 1.0)
        for _ in range(3):
            await patience.bear(Retryable("away"))
        assert patience.trouble == "away"
        patience.relax()
        await patience.bear(Retryable("away"))

    asyncio.run(run())
    assert waits[-1] == waits[0] < waits[2]
