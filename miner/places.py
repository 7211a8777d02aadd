"""Where a miner connects to, and where it does not.

Addresses come from strangers: validators publish theirs on chain, the subnet's owner commits the storage's, and a
leader names an upload's in each receipt. Unless private addresses are allowed, only public ones are called, and deltas
go to the committed storage and nowhere else, so that nobody can point miners at services inside their own networks.
A storage endpoint's name is resolved once, at the start and when the run moves: who controls that name can still move
it afterwards.
"""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from typing import Protocol

from urllib3.exceptions import LocationParseError
from urllib3.util import Url, parse_url

from common.chain.commitment import RunLocation
from common.chain.port import Endpoint
from common.errors import Rejected, Retryable
from common.merge.networks import address_of

_PORTS = {"http": 80, "https": 443}
_PERMITS = "--allow-private permits it"


def endpoint_url(endpoint: Endpoint, allow_private: bool) -> str:
    """The base URL of a published endpoint. Raises ``Rejected('bad_endpoint')`` for one not to be connected to."""
    try:
        address = ipaddress.ip_address(endpoint.ip)
    except ValueError:
        raise Rejected("bad_endpoint", f"{endpoint.ip[:60]!r} is not an IP address") from None
    if not 1 <= endpoint.port <= 65535:
        raise Rejected("bad_endpoint", f"{endpoint.port} is not a port")
    if not allow_private and not _is_public(endpoint.ip):
        raise Rejected("bad_endpoint", f"{address} is not a public address; {_PERMITS}")
    host = f"[{address}]" if address.version == 6 else str(address)
    return f"http://{host}:{endpoint.port}"


class UploadCheck(Protocol):
    """Knows where deltas may go."""

    def check_upload(self, url: str) -> None:
        """Raise ``Rejected('url_refused')`` unless ``url`` leads to the run's storage."""
        ...


@dataclass(frozen=True)
class StoragePlace:
    """Scheme, host and port of the storage that the subnet's owner committed, and its bucket."""

    scheme: str
    host: str
    port: int
    bucket: str

    @classmethod
    def of(cls, location: RunLocation) -> StoragePlace:
        """Of a decoded commitment. Raises ``Rejected('bad_commitment')`` for what is no URL after all."""
        url = _parse(location.endpoint)
        if url is None or url.host is None or url.scheme not in _PORTS:
            raise Rejected("bad_commitment", f"the storage endpoint {location.endpoint!r} is no address")
        return cls(url.scheme, url.host, url.port or _PORTS[url.scheme], location.bucket)

    def check_public(self) -> None:
        """Raise ``Rejected('bad_endpoint')`` for a private address, ``Retryable`` for a name unknown now. Blocks."""
        host = self.host.strip("[]")
        try:
            found = socket.getaddrinfo(host, self.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise Retryable(f"the storage's name {host} can't be resolved: {error}") from error
        private = [str(entry[4][0]) for entry in found if not _is_public(str(entry[4][0]))]
        if private:
            raise Rejected("bad_endpoint", f"the storage {host} is at {private[0]}, no public address; {_PERMITS}")

    def check_upload(self, url: str) -> None:
        """Raise ``Rejected('url_refused')`` unless ``url`` leads to this storage, path-style or as ``bucket.host``."""
        found = _parse(url)
        if found is None or found.auth is not None or found.scheme not in _PORTS:
            raise Rejected("url_refused", "the leader's upload URL is not a plain http(s) address")
        hosts = (self.host, f"{self.bucket}.{self.host}")
        port = found.port or _PORTS[found.scheme]
        if (found.scheme, port) != (self.scheme, self.port) or found.host not in hosts:
            theirs, ours = f"{found.scheme}://{found.host}:{port}", f"{self.scheme}://{self.host}:{self.port}"
            raise Rejected("url_refused", f"the leader's upload URL leads to {theirs}; the run's storage is {ours}")


def _parse(url: str) -> Url | None:
    """As the client that will connect reads it; None for what is no URL."""
    try:
        return parse_url(url)
    except (LocationParseError, ValueError):
        return None


def _is_public(text: str) -> bool:
    address = address_of(text.partition("%")[0])
    assert address is not None, "an endpoint's address was read, and the resolver gives addresses"
    return address.is_global and not address.is_multicast
