"""What an S3 service's error reply means to us: one pure mapping, shared by the S3 adapter and the plain-HTTP side.

Source: the S3 API reference's error codes, and what R2, Ceph and SeaweedFS were seen to answer. A code is looked at
before its status, since several services give one status to different faults. Replies are a stranger's bytes: the XML
is cut short and scanned for two fields, never parsed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from common.errors import BrigadeError, Rejected, Retryable, SetupError
from common.store.multipart import UploadMissing
from common.store.port import AccessDenied, ObjectMissing, OutcomeUnknown, PreconditionFailed

MAX_REPLY_BYTES = 16 * 1024
_FIELD = re.compile(rb"<(Code|Message)>([^<]{0,400})</")
_WRONG_KEYS = {"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidClientTokenId", "AuthorizationHeaderMalformed"}
_CLOCK_OFF = {"RequestTimeTooSkewed", "RequestExpired"}
_OTHER_REGION = {"PermanentRedirect", "IllegalLocationConstraintException"}
_BAD_CHECKSUM = {"BadDigest", "InvalidDigest", "XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch"}
_BAD_PARTS = {"InvalidPart", "InvalidPartOrder", "EntityTooSmall"}
_NO_SUCH_FEATURE = {"NotImplemented", "MethodNotAllowed", "UnsupportedOperation"}
_PASSING = {"RequestTimeout", "SlowDown", "OperationAborted", "InternalError", "ServiceUnavailable"}


@dataclass(frozen=True)
class ErrorReply:
    """An answer that is not a success."""

    status: int
    code: str = ""  # S3's word for it, empty where there was none (HEAD)
    retry_after_s: float | None = None

    def is_passing(self) -> bool:
        """Whether the same request may succeed later."""
        return self.status == 429 or self.status >= 500 or self.code in _PASSING


def parse_reply(status: int, body: bytes, retry_after: str | None) -> ErrorReply:
    """The reply's facts from its status, its first bytes and its Retry-After header."""
    fields = dict(_FIELD.findall(body[:MAX_REPLY_BYTES]))
    code = fields.get(b"Code", b"").decode("ascii", "replace")[:80]
    return ErrorReply(status, code, parse_retry_after_s(retry_after))


def parse_retry_after_s(text: str | None) -> float | None:
    """Seconds of a Retry-After header; the rare form with a date is ignored, as it needs a common clock."""
    return float(text) if text and text.isascii() and text.isdigit() and len(text) < 6 else None


def store_error(reply: ErrorReply, key: str, where: str, *, conditional: bool = False) -> BrigadeError:
    """The exception for an error reply to a request that we signed with our own credentials."""
    setup = _setup_error(reply, where)
    if setup is not None:
        return setup
    said = f"{where} answers {reply.status} {reply.code}".rstrip()
    # 404: AWS's answer to If-Match on a missing key. 409: AWS lost count of a race. Either way, re-read.
    if conditional and reply.status in (404, 409, 412):
        return PreconditionFailed(key)
    if reply.code in _BAD_CHECKSUM:
        return Rejected("bad_checksum", f"{key} arrived damaged at {where}")
    if reply.code in _NO_SUCH_FEATURE or reply.status in (405, 501):
        return Rejected("not_supported", f"{said} for {key}")
    if reply.is_passing():
        if conditional and reply.status != 429:
            return OutcomeUnknown(key, said)
        return Retryable(f"{said} for {key}", reply.retry_after_s)
    if reply.status in (401, 403):
        return AccessDenied(f"{said} for {key}")
    return _final_error(reply, key, said)


def _setup_error(reply: ErrorReply, where: str) -> SetupError | None:
    if reply.code in _WRONG_KEYS:
        return SetupError(f"wrong storage credentials for {where}: check the access key and the secret key")
    if reply.code == "NoSuchBucket":
        return SetupError(f"there is no such bucket ({where}): create it, or correct its name")
    if reply.code in _CLOCK_OFF:
        return SetupError(f"this machine's clock is off, says {where}: set it by NTP and try again")
    if reply.code in _OTHER_REGION:
        return SetupError(f"the bucket is in another region ({where}): correct the region or the endpoint")
    return None


def _final_error(reply: ErrorReply, key: str, said: str) -> Rejected:
    if reply.code == "NoSuchUpload":
        return UploadMissing(key)
    if reply.code in _BAD_PARTS:
        return Rejected("bad_parts", f"{said} for {key}: its parts do not make an object")
    if reply.status == 404:
        return ObjectMissing(key)
    if reply.status == 416:
        return Rejected("bad_range", f"{key} ends before the range begins")
    return Rejected("refused", f"{said} for {key}")
