"""Where a run's objects are, without the keys: what an owner's entry and the commitment on chain say of a bucket."""

from __future__ import annotations

from dataclasses import dataclass

from common.keys import public_base_url


@dataclass(frozen=True)
class BucketPlace:
    """A bucket, or a prefix in it, at an S3-compatible endpoint."""

    endpoint: str
    """http(s)://host[:port]."""
    bucket: str
    prefix: str
    """Without slashes at its ends; empty for the whole bucket."""

    @property
    def base_url(self) -> str:
        """Where objects are read by plain GET: the base of every key, without a trailing slash."""
        return public_base_url(self.endpoint, self.bucket, self.prefix)
