"""Where a bucket is and the keys that open it, and the private file that carries both between processes.

Invariant: the secrets appear in no repr, log line or error message; the file is readable by its owner only and
replaced whole, never half.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from common.errors import OperatorError, Rejected, SetupError
from common.files import write_atomically
from common.keys import public_base_url
from common.logs import hide
from common.store.port import check_key

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_MAX_FILE_BYTES = 64 * 1024


@dataclass(frozen=True)
class StorageConfig:
    """One bucket, or one prefix in it, at an S3-compatible endpoint. All objects are addressed path-style."""

    endpoint: str  # http(s)://host[:port], without a path
    bucket: str
    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    prefix: str = ""  # a plain key without a trailing slash, or empty for the whole bucket
    region: str = "us-east-1"

    def __post_init__(self) -> None:
        url = urlsplit(self.endpoint)
        if url.scheme not in ("http", "https") or not url.hostname or url.path.strip("/") or url.query:
            raise OperatorError(f"storage endpoint {self.endpoint!r} must look like https://host or http://host:port")
        if not _BUCKET.fullmatch(self.bucket):
            raise OperatorError(f"{self.bucket!r} is not a bucket name (3 to 63 of a-z, 0-9, dot, hyphen)")
        if not (self.access_key and self.secret_key):
            raise OperatorError("storage needs an access key and a secret key")
        if self.prefix:
            try:
                check_key(self.prefix)
            except Rejected as refusal:
                raise OperatorError(f"storage prefix: {refusal.message}") from refusal
        object.__setattr__(self, "endpoint", self.endpoint.rstrip("/"))
        for secret in (self.access_key, self.secret_key):  # wherever they came from, no log of this process shows them
            hide(secret)

    def public_base_url(self) -> str:
        """Where objects are read by plain GET: the base of every key, without a trailing slash."""
        return public_base_url(self.endpoint, self.bucket, self.prefix)


def save_config(config: StorageConfig, path: Path) -> None:
    """Write ``config`` with its secrets to ``path``, mode 0600."""
    write_atomically(path, (json.dumps(asdict(config), indent=2) + "\n").encode())


def load_config(path: Path) -> StorageConfig:
    """Read what ``save_config`` wrote; OperatorError when it is not such a file."""
    values = _read_json(path)
    if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
        raise OperatorError(f"{path} does not hold a storage configuration")
    try:
        return StorageConfig(**values)
    except TypeError as error:
        raise OperatorError(f"{path} lacks a field of a storage configuration, or has one too many") from error


def _read_json(path: Path) -> object:
    try:
        with path.open("rb") as file:
            return json.loads(file.read(_MAX_FILE_BYTES))
    except FileNotFoundError as error:
        raise OperatorError(f"{path} does not exist; start the storage first (brigade storage serve)") from error
    except (ValueError, RecursionError) as error:
        raise OperatorError(f"{path} is not JSON") from error
    except OSError as error:
        raise SetupError(f"cannot read {path}: {error.strerror}") from error
