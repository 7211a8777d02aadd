"""Asking a validator how its run is going, as `brigade up` and `brigade status` do."""

from __future__ import annotations

import httpx

from common.errors import Rejected
from common.timeouts import CONNECT_S, CONTROL_READ_S
from common.wire import MAX_REPLY_BYTES, Status, parse


def status_client() -> httpx.Client:
    """One long-lived client for status requests."""
    return httpx.Client(timeout=httpx.Timeout(CONTROL_READ_S, connect=CONNECT_S), trust_env=False)


def fetch_status(client: httpx.Client, url: str) -> Status | None:
    """The validator's status, or None while it does not answer. Raises ``Rejected`` for an answer that is none."""
    try:
        reply = client.get(f"{url}/v1/status")
    except httpx.TransportError:
        return None
    if reply.status_code >= 500:
        return None
    if reply.status_code != 200:
        raise Rejected("bad_message", f"{url} answers {reply.status_code} to a question for its status")
    return parse(Status, reply.content, MAX_REPLY_BYTES)
