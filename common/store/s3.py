"""The S3 adapter, and the only importer of boto3.

Invariant: botocore never retries by itself. A conditional put is sent once, since a retry after a lost reply would be
told 412 about our own bytes; everything else is idempotent and repeated here, under one policy.
Sources: the S3 API reference; R2's and SeaweedFS's deviations as the project has measured them. Checksums are sent
explicitly (``when_required``: botocore's default CRC32 trailers break R2), addressing is path-style, and only single
calls are made, never boto3's transfer manager, whose CRT client ignores the endpoint. ``s3_parts.py`` has multipart.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from email.utils import parsedate_to_datetime
from typing import Any, NoReturn, TypeVar
from urllib.parse import urlsplit

import boto3
from botocore import exceptions as boto_errors
from botocore.config import Config
from botocore.parsers import ResponseParserError

from common import timeouts
from common.errors import Rejected, Retryable, SetupError
from common.store.config import StorageConfig
from common.store.multipart import Md5, PartInfo, UploadInfo
from common.store.port import (
    MAX_PRESIGN_S,
    Fetched,
    ObjectInfo,
    ObjectMissing,
    OutcomeUnknown,
    PresignedPut,
    check_conditions,
    check_key,
)
from common.store.replies import ErrorReply, parse_retry_after_s, store_error
from common.store.retry import RetryPolicy, Sleep, Uniform, with_retries
from common.store.s3_parts import S3Parts
from common.units import Sha256, sha256_hex

T = TypeVar("T")
_SESSION_LOCK = threading.Lock()
# Raised before a byte of the request left, so that even a conditional put has certainly not happened.
_NEVER_SENT = (
    boto_errors.EndpointConnectionError,
    boto_errors.ConnectTimeoutError,
    boto_errors.ProxyConnectionError,
    boto_errors.SSLError,
)
_TRANSPORT = (boto_errors.HTTPClientError, boto_errors.ConnectionError, boto_errors.IncompleteReadError)
_STRANGE = (ResponseParserError, KeyError, ValueError, TypeError, AttributeError, RecursionError)
"""What a reply raises that is no S3 server's: a portal's page with status 200, a field that is missing, a redirect."""
_BOTO = (boto_errors.ClientError, boto_errors.BotoCoreError, boto_errors.HTTPClientError)


class S3Store:
    """``ObjectStore`` over one bucket, or a prefix in it, of an S3-compatible service. Threads may share it."""

    def __init__(
        self,
        config: StorageConfig,
        *,
        connect_timeout_s: float = timeouts.CONNECT_S,
        read_timeout_s: float = timeouts.STORE_READ_S,
        list_page_keys: int = 1000,
        policy: RetryPolicy | None = None,
        sleep: Sleep = time.sleep,
        uniform: Uniform = random.random,
    ) -> None:
        self.config = config
        self._base = f"{config.prefix}/" if config.prefix else ""
        self._list_page_keys = list_page_keys
        self._policy = policy or RetryPolicy()
        self._sleep = sleep
        self._uniform = uniform
        self._policy_lock = threading.Lock()
        self._client = _make_client(config, connect_timeout_s, read_timeout_s)
        self._parts = S3Parts(self._client, self._base, self._address, self._repeat, self._list_page_keys)

    def put(self, key: str, body: bytes, *, if_none_match: bool = False, if_match: str | None = None) -> str:
        request = self._address(key) | {
            "Body": body,
            "ChecksumSHA256": base64.b64encode(hashlib.sha256(body).digest()).decode(),
        }
        if not check_conditions(if_none_match, if_match):
            return self._repeat(key, lambda: str(self._client.put_object(**request)["ETag"]))
        condition = {"IfNoneMatch": "*"} if if_none_match else {"IfMatch": if_match}
        try:
            return str(self._client.put_object(**request, **condition)["ETag"])
        except (*_STRANGE, *_BOTO) as error:
            self._raise(error, key, conditional=True)

    def get(self, key: str, *, start: int | None = None, end: int | None = None, max_bytes: int) -> Fetched:
        first = start or 0
        if first < 0 or (end is not None and end <= first):
            raise ValueError(f"no bytes in the range {start}..{end}")
        request = self._address(key)
        ranged = start is not None or end is not None
        if ranged:
            request["Range"] = f"bytes={first}-{'' if end is None else end - 1}"
        return self._repeat(key, lambda: self._read(key, request, ranged, max_bytes))

    def head(self, key: str) -> ObjectInfo | None:
        try:
            found = self._repeat(key, lambda: self._look(key))
        except ObjectMissing:
            return None
        # A refused HEAD has no body to say why; a GET has one, and tells wrong credentials from a lack of rights.
        return found or self._info_by_get(key)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        bucket, page_keys = self.config.bucket, self._list_page_keys
        request: dict[str, Any] = {"Bucket": bucket, "Prefix": self._base + prefix, "MaxKeys": page_keys}
        while True:
            found, following = self._repeat(prefix, lambda: self._page(request))
            yield from found
            if following is None:
                return
            request["ContinuationToken"] = following

    def delete(self, key: str) -> None:
        request = self._address(key)
        self._repeat(key, lambda: self._client.delete_object(**request))

    def presign_put(self, key: str, *, size_bytes: int, sha256: Sha256, expires_s: int) -> PresignedPut:
        checksum = base64.b64encode(bytes.fromhex(sha256)).decode()
        request = self._address(key) | {"ContentLength": size_bytes, "ChecksumSHA256": checksum}
        url = self._presign("put_object", request, expires_s)
        return PresignedPut(url, {"content-length": str(size_bytes), "x-amz-checksum-sha256": checksum})

    def create_multipart(self, key: str) -> str:
        return self._parts.create(key)

    def list_uploads(self, prefix: str) -> Iterator[UploadInfo]:
        return self._parts.uploads(self.config.bucket, prefix)

    def list_parts(self, key: str, upload_id: str) -> tuple[PartInfo, ...]:
        return self._parts.parts(key, upload_id)

    def presign_part(
        self, key: str, upload_id: str, *, number: int, size_bytes: int, md5: Md5, expires_s: int
    ) -> PresignedPut:
        digest = base64.b64encode(bytes.fromhex(md5)).decode()
        request = self._address(key) | {"UploadId": upload_id, "PartNumber": number}
        url = self._presign("upload_part", request | {"ContentLength": size_bytes, "ContentMD5": digest}, expires_s)
        return PresignedPut(url, {"content-length": str(size_bytes), "content-md5": digest})

    def complete_multipart(self, key: str, upload_id: str, parts: Sequence[PartInfo]) -> str:
        return self._parts.complete(key, upload_id, parts)

    def abort_multipart(self, key: str, upload_id: str) -> None:
        self._parts.abort(key, upload_id)

    def allow_public_reads(self) -> None:
        with self._policy_lock:
            statement = _public_read_statement(self.config.bucket, self._base)
            others = [old for old in self._policy_statements() if old.get("Sid") != statement["Sid"]]
            policy = json.dumps({"Version": "2012-10-17", "Statement": [*others, statement]})
            bucket = self.config.bucket
            self._repeat("the policy", lambda: self._client.put_bucket_policy(Bucket=bucket, Policy=policy))

    def server_clock_skew_s(self) -> float:
        """Our wall clock minus the server's (its Date header, one second's grain); one cheap unretried request."""
        before_s = time.time()
        try:
            reply = self._client.list_objects_v2(Bucket=self.config.bucket, Prefix=self._base + "-", MaxKeys=1)
            server_s = parsedate_to_datetime(reply["ResponseMetadata"]["HTTPHeaders"]["date"]).timestamp()
        except (*_STRANGE, *_BOTO) as error:
            self._raise(error, "-")
        return (before_s + time.time()) / 2 - server_s

    # Inside.

    def _address(self, key: str) -> dict[str, Any]:
        return {"Bucket": self.config.bucket, "Key": self._base + check_key(key)}

    def _repeat(self, key: str, action: Callable[[], T]) -> T:
        def once() -> T:
            try:
                return action()
            except (*_STRANGE, *_BOTO) as error:
                self._raise(error, key)

        return with_retries(once, self._policy, sleep=self._sleep, uniform=self._uniform)

    def _page(self, request: dict[str, Any]) -> tuple[tuple[ObjectInfo, ...], str | None]:
        """One page of a listing, and where the next one begins. A reply that says nothing is no empty listing."""
        page = self._client.list_objects_v2(**request)
        if "Name" not in page and "KeyCount" not in page:
            raise ValueError("a listing without the name of its bucket")
        found = tuple(
            ObjectInfo(
                item["Key"].removeprefix(self._base), item["Size"], item["ETag"], item["LastModified"].timestamp()
            )
            for item in page.get("Contents", ())
        )
        return found, str(page["NextContinuationToken"]) if page.get("IsTruncated") else None

    def _look(self, key: str) -> ObjectInfo | None:
        """The object's facts by HEAD, or None when that is refused."""
        try:
            return _info(key, self._client.head_object(**self._address(key)))
        except boto_errors.ClientError as error:
            if _error_reply(error).status == 403:
                return None
            raise

    def _read(self, key: str, request: dict[str, Any], ranged: bool, max_bytes: int) -> Fetched:
        reply = self._client.get_object(**request)
        with closing(reply["Body"]) as stream:
            if ranged and "ContentRange" not in reply:
                raise Rejected("range_ignored", f"the store at {self.config.endpoint} does not support range reads")
            if reply["ContentLength"] > max_bytes:
                size = reply["ContentLength"]
                raise Rejected("too_large", f"{key} has {size} bytes, more than the {max_bytes} allowed")
            body = stream.read(max_bytes + 1)
        if len(body) != reply["ContentLength"]:
            raise Retryable(f"{key} ended after {len(body)} of {reply['ContentLength']} bytes")
        return Fetched(body, _info(key, reply))

    def _info_by_get(self, key: str) -> ObjectInfo | None:
        try:
            return self.get(key, start=0, end=1, max_bytes=1).info
        except ObjectMissing:
            return None

    def _presign(self, operation: str, request: dict[str, Any], expires_s: int) -> str:
        if not 0 < expires_s <= MAX_PRESIGN_S:
            raise ValueError(f"a presigned URL lives 1 to {MAX_PRESIGN_S} seconds, not {expires_s}")
        return str(self._client.generate_presigned_url(operation, Params=request, ExpiresIn=expires_s))

    def _policy_statements(self) -> Any:
        """What the bucket's policy says already, so that ours is added and nobody's is lost."""
        bucket = self.config.bucket
        try:
            reply = self._repeat("the policy", lambda: self._client.get_bucket_policy(Bucket=bucket))
        except ObjectMissing:
            return []
        statements = json.loads(reply["Policy"]).get("Statement", [])
        return statements if isinstance(statements, list) else [statements]

    def _raise(self, error: Exception, key: str, *, conditional: bool = False) -> NoReturn:
        """Say in the port's words what botocore's exception means."""
        where = f"{self.config.endpoint}, bucket {self.config.bucket}"
        if isinstance(error, boto_errors.ClientError):
            raise store_error(_error_reply(error), key, where, conditional=conditional) from error
        if isinstance(error, _TRANSPORT):
            cause = type(error).__name__
            if conditional and not isinstance(error, _NEVER_SENT):
                raise OutcomeUnknown(key, cause) from error
            raise Retryable(f"storage at {self.config.endpoint} did not answer for {key} ({cause})") from error
        if isinstance(error, _STRANGE):
            cause = f"its reply is no S3 server's: {type(error).__name__}"
            if conditional:
                raise OutcomeUnknown(key, cause) from error
            raise Retryable(f"storage at {self.config.endpoint}: {cause}, for {key}") from error
        raise error  # botocore found the request itself malformed: a bug of ours


@functools.cache
def _session() -> Any:
    """One session for the process: it parses the service's description (half a second), and clients may be shared
    between threads, but sessions may not, hence the lock."""
    return boto3.session.Session()


def _make_client(config: StorageConfig, connect_timeout_s: float, read_timeout_s: float) -> Any:
    on_loopback = urlsplit(config.endpoint).hostname in ("127.0.0.1", "localhost", "::1")
    settings = Config(
        signature_version="s3v4",
        s3={"addressing_style": "path"},
        retries={"total_max_attempts": 1, "mode": "standard"},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        connect_timeout=connect_timeout_s,
        read_timeout=read_timeout_s,
        max_pool_connections=32,
        proxies={} if on_loopback else None,  # a proxy from the environment cannot reach our own loopback
    )
    try:
        with _SESSION_LOCK:
            return _session().client(
                "s3",
                endpoint_url=config.endpoint,
                region_name=config.region,
                aws_access_key_id=config.access_key,
                aws_secret_access_key=config.secret_key,
                config=settings,
            )
    except boto_errors.BotoCoreError as error:
        raise SetupError(f"cannot set up the storage client: {error}") from error


def _info(key: str, reply: dict[str, Any]) -> ObjectInfo:
    content_range = reply.get("ContentRange")
    size_bytes = int(content_range.rpartition("/")[2]) if content_range else reply["ContentLength"]
    return ObjectInfo(key, size_bytes, reply["ETag"], reply["LastModified"].timestamp())


def _error_reply(error: boto_errors.ClientError) -> ErrorReply:
    meta = error.response.get("ResponseMetadata", {})
    retry_after = meta.get("HTTPHeaders", {}).get("retry-after")
    code = str(error.response.get("Error", {}).get("Code", ""))
    status = int(meta.get("HTTPStatusCode", 0))
    # botocore fills in the status where a reply had no body to name a code.
    return ErrorReply(status, "" if code == str(status) else code, parse_retry_after_s(retry_after))


def _public_read_statement(bucket: str, base: str) -> dict[str, Any]:
    return {
        "Sid": f"BrigadePublicReads{sha256_hex(base.encode())[:12]}",
        "Effect": "Allow",
        "Principal": "*",
        "Action": ["s3:GetObject"],
        "Resource": [f"arn:aws:s3:::{bucket}/{base}*"],
    }
