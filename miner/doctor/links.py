"""The machine's links to a run: how fast its storage can be read, what its clock says, and the uplink.

What is told was measured with real bytes of the run, never for longer than the limits say.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import urllib3

from common.clock import Clock
from common.errors import Rejected, Retryable
from common.store.http import HttpClient, lost, read_error
from common.store.transfer import date_s
from miner.client import ValidatorClient
from miner.doctor.facts import ClockReading, Link

READ_BYTES = 256 * 1024
LEAST_S = 0.05
"""What comes in less time after the first bytes tells of buffers more than of the link."""
DATE_GRAIN_S = 1.5
"""A Date header tells whole seconds, and was made some time before it came."""


@dataclass(frozen=True)
class DownLimits:
    """Of the look at the downlink."""

    most_bytes: int = 64 << 20
    most_s: float = 5.0


def measure_downlink(
    http: HttpClient,
    url: str,
    subject: str,
    size_bytes: int,
    limits: DownLimits,
    now_s: Callable[[], float] = time.monotonic,
) -> Link:
    """Read the beginning of an object of ``size_bytes``. Blocks. Raises ``Retryable`` and ``Rejected``.

    The rate is that of what follows the first bytes, whose way is the store's thinking too; of an object that comes at
    once it is a lower bound.
    """
    last = min(size_bytes, limits.most_bytes) - 1
    began_s = now_s()
    reply = http.request(
        "GET", url, headers={"range": f"bytes=0-{last}", "accept-encoding": "identity"}, subject=subject
    )
    if reply.status not in (200, 206):
        facts = read_error(reply)
        raise Rejected("refused", f"{subject}: the storage answers {facts.status} {facts.code}".rstrip())
    first_bytes = got_bytes = 0
    first_s = began_s
    try:
        while got_bytes <= last and now_s() < began_s + limits.most_s and (block := reply.read1(READ_BYTES)):
            got_bytes += len(block)
            if not first_bytes:
                first_bytes, first_s = got_bytes, now_s()
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise lost(subject, url, error) from error
    finally:
        reply.close()
    ended_s = now_s()
    if not got_bytes:
        raise Retryable(f"{subject}: not a byte came in {limits.most_s:g} s")
    if got_bytes > first_bytes and ended_s - first_s >= LEAST_S:
        return Link(8 * (got_bytes - first_bytes) / (ended_s - first_s), got_bytes, ended_s - began_s)
    return Link(8 * got_bytes / max(ended_s - began_s, 1e-6), got_bytes, ended_s - began_s, at_least=True)


def storage_clock(http: HttpClient, url: str, clock: Clock) -> ClockReading | None:
    """Our clock beside the storage's, by the Date of a reply, whatever its status; None if it has none. Blocks."""
    began_s = clock.monotonic_s()
    reply = http.request("GET", url, headers={"range": "bytes=0-0"}, subject="the storage's clock")
    there_s, took_s = date_s(reply), clock.monotonic_s() - began_s
    reply.close()
    if there_s is None:
        return None
    ours_s = clock.wall_ns() / 1e9 - took_s / 2
    return ClockReading("the storage", ours_s - there_s - 0.5, DATE_GRAIN_S + took_s / 2)


async def measure_uplink(validator: ValidatorClient) -> Link | None:
    """What a real upload to the run's storage came to, for one who has a seat; None where nothing can be tried.

    The only uploads that validators sign so far are those of a submission, which must be work that was done. So nothing
    is sent, and nothing is made up.
    """
    return None
