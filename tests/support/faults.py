"""What may be wrong with a line through the fault proxy, and what it counts."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

_SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"


@dataclass
class Answer:
    """An HTTP answer that the proxy gives itself instead of passing a request on."""

    status: int
    left: int | None
    """How many requests get it; None: all, until it is taken away."""
    retry_after_s: int | None = None
    method: str = ""
    """Only requests of this method; empty: all."""
    path: str = ""
    """Only requests whose path begins so."""
    contains: str = ""
    """Only requests with this in their path."""
    body: bytes = _SLOW_DOWN

    def meets(self, method: str, path: str) -> bool:
        """Whether this request gets the answer."""
        meant = path.startswith(self.path) and self.contains in path
        return self.left != 0 and self.method in ("", method) and meant

    def encode(self, method: str) -> bytes:
        """The bytes of the answer; to a HEAD without the body."""
        head = [f"HTTP/1.1 {self.status} Injected", f"Content-Length: {len(self.body)}", "Connection: close"]
        if self.retry_after_s is not None:
            head.append(f"Retry-After: {self.retry_after_s}")
        return "\r\n".join([*head, "", ""]).encode() + (b"" if method == "HEAD" else self.body)


@dataclass
class Faults:
    """What is wrong with the line now. The lists and counts are used up; the rest lasts until it is changed."""

    latency_s: float = 0.0
    black_hole: bool = False
    running: asyncio.Event = field(default_factory=asyncio.Event)
    """Cleared while the line is stalled."""
    answers: list[Answer] = field(default_factory=list)
    lost_replies: int = 0
    up_cuts: list[int] = field(default_factory=list)
    down_cuts: list[int] = field(default_factory=list)
    upload_flips: list[int] = field(default_factory=list)
    up_flips: list[int] = field(default_factory=list)
    down_flips: list[int] = field(default_factory=list)


@dataclass
class Counters:
    """What happened so far."""

    connections: int = 0
    uploads: int = 0
    """PUT requests that have begun."""
    up_bytes: int = 0
    """Forwarded to the target."""
    down_bytes: int = 0
    """Forwarded to the clients."""
    swallowed_bytes: int = 0
    answered: int = 0
    lost_replies: int = 0
    cuts: int = 0
    flipped_bytes: int = 0
