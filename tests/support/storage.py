"""A real S3 server for tests, and stores on it that wait for nothing."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from common.store.config import StorageConfig
from common.store.retry import RetryPolicy
from common.store.s3 import S3Store
from common.store.seaweed import SeaweedServer

QUICK = RetryPolicy(attempts=4, first_wait_s=0.0, longest_wait_s=0.0)


@contextmanager
def running_server(directory: Path, *, bucket: str = "brigade") -> Iterator[tuple[SeaweedServer, StorageConfig]]:
    """A SeaweedFS on free ports that ends with the block, and with the test process at the latest."""
    server = SeaweedServer(directory, bucket=bucket)
    config = server.start(die_with_parent=True, ready_within_s=120.0)
    try:
        yield server, config
    finally:
        server.stop()


def fresh_prefix(config: StorageConfig) -> StorageConfig:
    """The same bucket under a prefix that nobody used: tests share a server and not their objects."""
    return replace(config, prefix=f"t-{secrets.token_hex(6)}")


def quick_store(config: StorageConfig, *, read_timeout_s: float = 10.0, attempts: int = 4) -> S3Store:
    """A store that retries at once."""
    return S3Store(config, policy=replace(QUICK, attempts=attempts), read_timeout_s=read_timeout_s, list_page_keys=3)
