"""The HTTP client under transfers: one connection pool, no redirects, no hidden retries, no URL in any message.

Presigned URLs open a key to whoever reads them, so messages name the object and the host only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

import urllib3

from common import timeouts
from common.errors import Rejected, Retryable
from common.store.replies import MAX_REPLY_BYTES, ErrorReply, parse_reply

BLOCK_BYTES = 64 * 1024


class HttpClient:
    """GET and PUT over a pool that threads may share.

    A connection on which no byte moves for ``stall_timeout_s`` raises Retryable, in either direction.
    """

    def __init__(
        self,
        *,
        connections: int = 8,
        connect_timeout_s: float = timeouts.CONNECT_S,
        stall_timeout_s: float = timeouts.BULK_STALL_S,
    ) -> None:
        self._pool = urllib3.PoolManager(num_pools=8, maxsize=connections)
        self._reading = urllib3.Timeout(connect=connect_timeout_s, read=stall_timeout_s)
        # urllib3 sends the body under the connect timeout, and a slow uplink may need long for one block.
        self._writing = urllib3.Timeout(connect=stall_timeout_s, read=stall_timeout_s)

    def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        subject: str,
        body: Iterable[bytes] | None = None,
    ) -> urllib3.BaseHTTPResponse:
        """Send the request and return once the reply's headers are here; the caller reads and closes the body."""
        try:
            reply = self._pool.request(
                method,
                url,
                headers=dict(headers),
                body=body,
                timeout=self._reading if body is None else self._writing,
                redirect=False,
                retries=False,
                preload_content=False,
                decode_content=False,
            )
        except (urllib3.exceptions.LocationValueError, urllib3.exceptions.InvalidHeader) as error:
            raise Rejected("bad_url", f"{subject} has a URL that is none") from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise lost(subject, url, error) from error
        if 300 <= reply.status < 400:
            reply.close()
            raise Rejected("redirected", f"{subject}: {_host(url)} redirects elsewhere, which is not followed")
        return reply

    def close(self) -> None:
        """Close idle connections."""
        self._pool.clear()


def lost(subject: str, url: str, error: Exception) -> Retryable:
    """The error for a connection that could not be made or broke."""
    return Retryable(f"{subject}: the connection to {_host(url)} failed ({type(error).__name__})")


def read_to_end(reply: urllib3.BaseHTTPResponse) -> bytes:
    """The body of a reply whose body is small; beyond the limit it is cut and the connection dropped."""
    try:
        return reply.read(MAX_REPLY_BYTES, decode_content=False)
    except (urllib3.exceptions.HTTPError, OSError):
        return b""  # the status, which is here already, says enough
    finally:
        reply.close()  # a body read to its end has given its connection back to the pool before


def read_error(reply: urllib3.BaseHTTPResponse) -> ErrorReply:
    """The facts of an error reply."""
    return parse_reply(reply.status, read_to_end(reply), reply.headers.get("retry-after"))


def _host(url: str) -> str:
    try:
        return urlsplit(url).netloc.rpartition("@")[2] or "nowhere"
    except ValueError:
        return "nowhere"
