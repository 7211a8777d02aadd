"""Asking a validator how its run is going, as `brigade up` and `brigade status` do."""

from __future__ import annotations

import httpx

from common.errors import OperatorError, Rejected
from common.timeouts import CONNECT_S, CONTROL_READ_S
from common.wire import MAX_REPLY_BYTES, Findings, M, Status, parse


def status_client() -> httpx.Client:
    """One long-lived client for status requests."""
    timeout = httpx.Timeout(CONTROL_READ_S, connect=CONNECT_S)
    return httpx.Client(timeout=timeout, trust_env=False, headers={"accept-encoding": "identity"})


def fetch_status(client: httpx.Client, url: str) -> Status | None:
    """The validator's status, or None while it does not answer. Raises ``Rejected`` for an answer that is none."""
    return _fetch(client, url, "status", Status)


def fetch_findings(client: httpx.Client, url: str) -> Findings | None:
    """What the validator knows of its miners' rates; as ``fetch_status``."""
    return _fetch(client, url, "findings", Findings)


def _fetch(client: httpx.Client, url: str, what: str, kind: type[M]) -> M | None:
    try:
        with client.stream("GET", f"{url}/v1/{what}") as reply:
            if reply.status_code >= 500:
                return None
            if reply.status_code != 200:
                raise Rejected("bad_message", f"{url} answers {reply.status_code} to a question for its {what}")
            return parse(kind, _bounded(reply, url), MAX_REPLY_BYTES)
    except httpx.TransportError:
        return None
    except httpx.InvalidURL as error:
        raise OperatorError(f"{url} is no address of a validator ({error}): it looks like http://host:port") from error


def _bounded(reply: httpx.Response, url: str) -> bytes:
    """The body as it came, never unpacked: what is compressed is refused, and what is too long not read."""
    if reply.headers.get("content-encoding", "identity") != "identity":
        raise Rejected("bad_message", f"{url} answers with a compressed body, which was not asked for")
    body = bytearray()
    for part in reply.iter_raw():
        body += part
        if len(body) > MAX_REPLY_BYTES:
            raise Rejected("too_large", f"{url} answers with more than {MAX_REPLY_BYTES} bytes")
    return bytes(body)
