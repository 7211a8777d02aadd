"""Asking a stranger for a status: what comes back is bounded, and every failure has its own type."""

from __future__ import annotations

import gzip
from collections.abc import Iterator

import httpx
import pytest

from common.errors import OperatorError, Rejected
from common.wire import MAX_REPLY_BYTES
from tests.up.support import status
from validator.up.client import fetch_status, status_client

URL = "http://validator"


def answering(response: httpx.Response) -> httpx.Client:
    return httpx.Client(transport=httpx.MockTransport(lambda _: response))


def test_a_status_is_read() -> None:
    with answering(httpx.Response(200, content=iter([status(3).model_dump_json().encode()]))) as client:
        found = fetch_status(client, URL)
    assert found == status(3)


def test_an_endless_answer_is_not_read_to_its_end() -> None:
    taken = 0

    def endless() -> Iterator[bytes]:
        nonlocal taken
        while True:
            taken += 1
            yield b"x" * 65_536

    with answering(httpx.Response(200, content=endless())) as client, pytest.raises(Rejected, match="too_large"):
        fetch_status(client, URL)
    assert taken <= MAX_REPLY_BYTES // 65_536 + 2


def test_nothing_is_unpacked() -> None:
    bomb = httpx.Response(200, content=gzip.compress(bytes(1 << 20)), headers={"content-encoding": "gzip"})
    with answering(bomb) as client, pytest.raises(Rejected, match="compressed"):
        fetch_status(client, URL)


def test_a_busy_validator_is_no_answer_and_another_service_a_wrong_one() -> None:
    with answering(httpx.Response(503)) as client:
        assert fetch_status(client, URL) is None
    with answering(httpx.Response(404)) as client, pytest.raises(Rejected, match="404"):
        fetch_status(client, URL)


@pytest.mark.parametrize("url", ["http://host:port", "http://[::1"])
def test_what_is_no_address_is_the_operators_error(url: str) -> None:
    with status_client() as client, pytest.raises(OperatorError, match="looks like"):
        fetch_status(client, url)
