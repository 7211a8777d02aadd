"""The look at a bucket before a run trusts it: everything Brigade needs of a store is tried once, with real objects.

Each failure ends in one SetupError that says what to do, ``StorageAway`` when nobody answers. A store that takes a
conditional put twice would let two leaders append the same log entry, so it is refused here and not found out later.
The probe removes its objects.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from loguru import logger

from common.errors import Rejected, RemoteError, Retryable, SetupError
from common.store.http import HttpClient
from common.store.multipart import md5_hex
from common.store.port import AccessDenied, ObjectStore, PreconditionFailed, PresignedPut
from common.store.s3 import S3Store
from common.store.transfer import upload
from common.timeouts import MAX_CLOCK_SKEW_S, PROBE_URL_LIFE_S
from common.units import sha256_hex

Send = Callable[[PresignedPut, bytes], object]
_ADVICE = "use Cloudflare R2, AWS S3 or the embedded server (brigade storage serve)"


class StorageAway(SetupError):
    """The storage gives no answer: whoever can wait tries again, since it may be away for the moment."""


@dataclass(frozen=True)
class ProbeReport:
    """What was found: the names of the checks that passed, and our clock minus the store's."""

    passed: tuple[str, ...]
    skew_s: float


def probe_bucket(store: S3Store, token: str) -> ProbeReport:
    """Probe an S3 bucket. ``token`` is a fresh plain word, so that two probes at once don't meet."""
    http = HttpClient()
    try:
        return probe(
            store,
            token,
            send=lambda put, body: upload(put.url, put.headers, body, http=http),
            skew_s=store.server_clock_skew_s,
        )
    finally:
        http.close()


def probe(store: ObjectStore, token: str, *, send: Send, skew_s: Callable[[], float]) -> ProbeReport:
    """Try what Brigade needs of ``store``; ``send`` puts a body to a presigned URL, ``skew_s`` compares the clocks."""
    folder = f"probe/{token}"
    try:
        return _run_checks(store, folder, send, skew_s)
    except AccessDenied as fault:
        raise SetupError(str(fault)) from fault
    except Retryable as fault:
        raise StorageAway(f"the storage does not answer: {fault}. Is it running, and the endpoint right?") from fault
    except Rejected as refusal:
        raise SetupError(f"the storage does not do what Brigade needs: {refusal}; {_ADVICE}") from refusal
    finally:
        _clean_up(store, folder)


def _run_checks(store: ObjectStore, folder: str, send: Send, skew_s: Callable[[], float]) -> ProbeReport:
    clock_skew_s = _check_clock(skew_s)
    _check_write_once(store, f"{folder}/once")
    _check_swap(store, f"{folder}/swap")
    _check_presigned(store, f"{folder}/presigned", send)
    _check_range(store, f"{folder}/range")
    _check_list(store, folder)
    _check_parts(store, f"{folder}/parts", send)
    passed = (
        "credentials", "clock", "if-none-match", "if-match", "presigned put", "checksum", "range", "list", "multipart"
    )  # fmt: skip
    return ProbeReport(passed, clock_skew_s)


def _check_clock(skew_s: Callable[[], float]) -> float:
    """Also the first request: wrong credentials and a missing bucket end here, in the store's own words."""
    found_s = skew_s()
    if abs(found_s) > MAX_CLOCK_SKEW_S:
        raise SetupError(f"this machine's clock is {found_s:+.0f} s off the storage's: set it by NTP and try again")
    return found_s


def _check_write_once(store: ObjectStore, key: str) -> None:
    store.put(key, b"first", if_none_match=True)
    try:
        store.put(key, b"second", if_none_match=True)
    except PreconditionFailed:
        return
    raise SetupError(f"the storage ignores conditional puts (If-None-Match), so a run log is not safe on it: {_ADVICE}")


def _check_swap(store: ObjectStore, key: str) -> None:
    old = store.put(key, b"old")
    store.put(key, b"new", if_match=old)
    try:
        store.put(key, b"late", if_match=old)
    except PreconditionFailed:
        return
    raise SetupError(f"the storage ignores conditional puts (If-Match), so a lease is not safe on it: {_ADVICE}")


def _check_presigned(store: ObjectStore, key: str, send: Send) -> None:
    body, other = b"announced", b"different"
    presigned = store.presign_put(key, size_bytes=len(body), sha256=sha256_hex(body), expires_s=PROBE_URL_LIFE_S)
    try:
        send(presigned, other)
    except Rejected:
        send(presigned, body)
        if store.get(key, max_bytes=100).body == body:
            return
        raise SetupError(f"the storage does not give back what was put into it; {_ADVICE}") from None
    raise SetupError(f"the storage takes other bytes than a presigned URL's checksum announces; {_ADVICE}")


def _check_range(store: ObjectStore, key: str) -> None:
    store.put(key, b"0123456789")
    fetched = store.get(key, start=2, end=5, max_bytes=10)
    if fetched.body != b"234" or fetched.info.size_bytes != 10:
        raise SetupError(f"the storage does not support range reads; {_ADVICE}")


def _check_list(store: ObjectStore, folder: str) -> None:
    found = {info.key for info in store.list(f"{folder}/")}
    if found != {f"{folder}/{name}" for name in ("once", "swap", "presigned", "range")}:
        raise SetupError(f"the storage's listing misses objects that were just written; {_ADVICE}")


def _check_parts(store: ObjectStore, key: str, send: Send) -> None:
    """With one part, which may be of any size."""
    body, other = b"announced", b"different"
    upload_id = store.create_multipart(key)
    if upload_id not in {begun.upload_id for begun in store.list_uploads(key)}:
        raise SetupError(f"the storage's listing misses a multipart upload that was just begun; {_ADVICE}")
    size_bytes, md5 = len(body), md5_hex(body)
    part = store.presign_part(key, upload_id, number=1, size_bytes=size_bytes, md5=md5, expires_s=PROBE_URL_LIFE_S)
    try:
        send(part, other)
    except Rejected:
        send(part, body)
        store.complete_multipart(key, upload_id, store.list_parts(key, upload_id))
        if store.get(key, max_bytes=100).body == body:
            return
        raise SetupError(f"the storage does not give back what was put in parts; {_ADVICE}") from None
    raise SetupError(f"the storage takes other bytes than the checksum of a part announces; {_ADVICE}")


def _clean_up(store: ObjectStore, folder: str) -> None:
    """Delete by name, not by listing, which may be what failed; but uploads in parts have no name of ours."""
    for name in ("once", "swap", "presigned", "range", "parts"):
        try:
            store.delete(f"{folder}/{name}")
        except (RemoteError, SetupError) as error:
            logger.warning("the probe's object {}/{} may be left behind: {}", folder, name, error)
            return
    try:
        for begun in store.list_uploads(f"{folder}/"):
            store.abort_multipart(begun.key, begun.upload_id)
    except (RemoteError, SetupError) as error:
        logger.warning("an upload in parts of the probe, {}, may be left behind: {}", folder, error)
