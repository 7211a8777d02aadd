"""The run's location as the subnet owner commits it on chain: three Raw fields of at most 128 bytes. Pure.

    1. ``brigade/1 <run> `` and the 32 raw bytes of the spec's sha256
    2. the S3 endpoint's URL
    3. ``bucket/prefix``; a leading ``+`` says that objects can be read by plain GET

``decode`` is total: whatever a stranger wrote gives a location or ``Rejected('bad_commitment')``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from common.chain.port import MAX_COMMITMENT_FIELD_BYTES, MAX_COMMITMENT_FIELDS
from common.errors import Rejected
from common.units import Sha256, is_sha256

TAG = b"brigade/1 "
ANY_VERSION = b"brigade/"
_RUN = re.compile(r"[a-z0-9-]{1,48}")
_ENDPOINT = re.compile(r"https?://[A-Za-z0-9.\-]+(:[0-9]{1,5})?|https?://\[[0-9A-Fa-f:]+\](:[0-9]{1,5})?")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.\-]{1,61}[a-z0-9]")
_PREFIX = re.compile(r"([A-Za-z0-9][A-Za-z0-9._\-]*/)*[A-Za-z0-9][A-Za-z0-9._\-]*")


@dataclass(frozen=True)
class RunLocation:
    """Where a run lives: ``<endpoint>/<bucket>/<prefix>``, and the hash that its spec must have.

    ``prefix`` has no slash at its ends and may be empty.
    """

    run: str
    spec_sha256: Sha256
    endpoint: str
    bucket: str
    prefix: str
    public_read: bool


def encode(location: RunLocation) -> tuple[bytes, bytes, bytes]:
    """The three fields; ``Rejected('bad_commitment')`` when the location can't be committed."""
    _check(location)
    place = ("+" if location.public_read else "") + location.bucket
    if location.prefix:
        place += f"/{location.prefix}"
    head = TAG + location.run.encode() + b" " + bytes.fromhex(location.spec_sha256)
    fields = (head, location.endpoint.encode(), place.encode())
    for field in fields:
        if len(field) > MAX_COMMITMENT_FIELD_BYTES:
            raise _bad(f"{field!r} is longer than the {MAX_COMMITMENT_FIELD_BYTES} bytes that the chain takes")
    return fields


def decode(fields: Sequence[bytes]) -> RunLocation:
    """The location in a commitment's Raw fields, or ``Rejected('bad_commitment')``."""
    if len(fields) != MAX_COMMITMENT_FIELDS:
        raise _bad(f"expected {MAX_COMMITMENT_FIELDS} fields, found {len(fields)}")
    head, endpoint, place = fields
    if not head.startswith(TAG):
        newer = head.startswith(ANY_VERSION)
        raise _bad("unknown version: update brigade" if newer else "the subnet owner has committed something else")
    run, _, digest = head.removeprefix(TAG).partition(b" ")
    bucket, _, prefix = _text(place).partition("/")
    location = RunLocation(
        run=_text(run),
        spec_sha256=Sha256(digest.hex()),
        endpoint=_text(endpoint),
        bucket=bucket.removeprefix("+"),
        prefix=prefix,
        public_read=bucket.startswith("+"),
    )
    _check(location)
    if place.endswith(b"/"):
        raise _bad("the prefix ends with a slash")
    return location


def _text(field: bytes) -> str:
    if len(field) > MAX_COMMITMENT_FIELD_BYTES:
        raise _bad("a field is too long")
    try:
        return field.decode("ascii")
    except UnicodeDecodeError:
        raise _bad("a field is not ASCII") from None


def _check(location: RunLocation) -> None:
    if not _RUN.fullmatch(location.run):
        raise _bad("the run's name must be 1 to 48 lowercase letters, digits and dashes")
    if not is_sha256(location.spec_sha256):
        raise _bad("the spec hash must be 32 bytes")
    if not _ENDPOINT.fullmatch(location.endpoint) or not _port_ok(location.endpoint):
        raise _bad("the endpoint must be http(s)://host[:port] and no more")
    if not _BUCKET.fullmatch(location.bucket):
        raise _bad("the bucket's name is not a valid one")
    if location.prefix and not _PREFIX.fullmatch(location.prefix):
        raise _bad("the prefix may hold letters, digits, '.', '_', '-' and single slashes")


def _port_ok(endpoint: str) -> bool:
    try:
        parts = urlsplit(endpoint)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _bad(why: str) -> Rejected:
    return Rejected("bad_commitment", why)
