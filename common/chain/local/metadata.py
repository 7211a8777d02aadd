"""Fetch the runtime metadata of the local chain: the golden file in the Bittensor SDK's source distribution.

The wheel doesn't carry it. Looked for in this order: the sdist that ``BRIGADE_BITTENSOR_SDIST`` names, the cache
folder, the package index through pip. Whatever the source, the archive's sha256 must be the pinned one, only the
golden file is read from it, and what lands in the cache is written whole or not at all.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import timeouts
from common.chain.local.splice import clone_storage_entry, opaque
from common.errors import SetupError
from common.files import PUBLIC, write_atomically

SDIST_VARIABLE = "BRIGADE_BITTENSOR_SDIST"
SDIST_VERSION = "11.3.0"
SDIST_SHA256 = "8ce05029a712866048c6cf3e3d5df1592ac896175f5b4227f63044b7e7b7edb3"
SDIST_NAME = f"bittensor-{SDIST_VERSION}.tar.gz"
GOLDEN_MEMBER = f"bittensor-{SDIST_VERSION}/tests/fixtures/golden.json"
CACHE_NAME = f"chain-metadata-{SDIST_SHA256[:12]}.json"
MAX_SDIST_BYTES = 16 << 20
MAX_GOLDEN_BYTES = 16 << 20


@dataclass(frozen=True)
class RuntimeMetadata:
    """The runtime's self-description, as the node serves it."""

    v15: bytes  # SCALE ``MetadataVersioned``
    v14: bytes
    spec_version: int
    transaction_version: int
    ss58_format: int

    @property
    def v15_opaque(self) -> bytes:
        """``Option<OpaqueMetadata>``: what ``Metadata_metadata_at_version`` returns."""
        return b"\x01" + opaque(self.v15)


def fetch_metadata(cache_dir: Path, environ: Mapping[str, str] = os.environ) -> RuntimeMetadata:
    """The metadata, from the cache when it is there. ``SetupError`` says what to do when it can't be had."""
    cached = cache_dir / CACHE_NAME
    if not cached.exists():
        golden = _golden(_sdist_bytes(cache_dir, environ))
        picked = {"network": golden["network"], "metadata": golden["metadata"]}
        write_atomically(cached, json.dumps(picked).encode(), PUBLIC)
    try:
        return _parse(json.loads(cached.read_bytes()))
    except (ValueError, KeyError, TypeError) as error:
        raise SetupError(f"{cached} is damaged ({error}): delete it and run again") from None


def _parse(golden: dict[str, Any]) -> RuntimeMetadata:
    network = golden["network"]
    v15 = bytes.fromhex(golden["metadata"]["v15_hex"][2:])[1:]
    return RuntimeMetadata(
        # SDK 11.3 reads SubnetEpochConsensus before it sets weights; spec 461 lacks it. A bool map that is always
        # false reads as "Yuma", which is what this runtime is.
        v15=clone_storage_entry(
            _strip_length(v15), "SubtensorModule", "CommitRevealWeightsEnabled", "SubnetEpochConsensus", b"\x00"
        ),
        v14=bytes.fromhex(golden["metadata"]["v14_hex"][2:]),
        spec_version=int(network["spec_version"]),
        transaction_version=int(network["transaction_version"]),
        ss58_format=int(network["ss58_format"]),
    )


def _strip_length(data: bytes) -> bytes:
    start = data.index(b"meta")
    return data[start:]


def _sdist_bytes(cache_dir: Path, environ: Mapping[str, str]) -> bytes:
    given = environ.get(SDIST_VARIABLE)
    if given:
        path = Path(given)
        path = path / SDIST_NAME if path.is_dir() else path
        if not path.is_file():
            raise SetupError(f"{SDIST_VARIABLE} names {given}, but there is no {SDIST_NAME} there")
        return _checked(path)
    kept = cache_dir / SDIST_NAME
    return _checked(kept) if kept.is_file() else _download(cache_dir)


def _download(cache_dir: Path) -> bytes:
    cache_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_dir) as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--no-binary", "bittensor", "--dest", folder, f"bittensor=={SDIST_VERSION}"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=timeouts.SDIST_FETCH_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise _cannot_fetch(str(error)) from None
        path = Path(folder) / SDIST_NAME
        if done.returncode or not path.is_file():
            raise _cannot_fetch((done.stderr.strip().splitlines() or ["pip said nothing"])[-1])
        return _checked(path)


def _cannot_fetch(why: str) -> SetupError:
    return SetupError(
        f"the local chain needs the source archive of bittensor {SDIST_VERSION}, which could not be fetched ({why}); "
        f"on a machine with network: pip download --no-deps --no-binary bittensor bittensor=={SDIST_VERSION}, "
        f"then set {SDIST_VARIABLE} to the file"
    )


def _checked(path: Path) -> bytes:
    if path.stat().st_size > MAX_SDIST_BYTES:
        raise SetupError(f"{path} is too large to be {SDIST_NAME}")
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != SDIST_SHA256:
        raise SetupError(f"{path} has the wrong sha256; expected {SDIST_SHA256}: fetch it again")
    return data


def _golden(sdist: bytes) -> dict[str, Any]:
    with tempfile.SpooledTemporaryFile(max_size=MAX_SDIST_BYTES) as spool:
        spool.write(sdist)
        spool.seek(0)
        with tarfile.open(fileobj=spool, mode="r:gz") as archive:
            member = archive.getmember(GOLDEN_MEMBER)
            source = archive.extractfile(member) if member.isreg() and member.size <= MAX_GOLDEN_BYTES else None
            if source is None:
                raise SetupError(f"{SDIST_NAME} holds no usable {GOLDEN_MEMBER}")
            golden: dict[str, Any] = json.loads(source.read())
            return golden
