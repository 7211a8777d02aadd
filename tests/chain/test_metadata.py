"""Fetching the runtime metadata: only the pinned archive counts, and what is missing is said."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest

from common.chain.local import metadata as module
from common.chain.local.metadata import GOLDEN_MEMBER, SDIST_NAME, SDIST_VARIABLE, fetch_metadata
from common.chain.local.splice import opaque
from common.errors import SetupError
from tests.chain.support import cache_dir


def _archive(path: Path, name: str, data: bytes, kind: bytes = tarfile.REGTYPE) -> None:
    with tarfile.open(path, "w:gz") as archive:
        member = tarfile.TarInfo(name)
        member.size, member.type, member.linkname = len(data), kind, "/etc/passwd"
        archive.addfile(member, io.BytesIO(data))


def test_a_given_archive_with_another_hash_is_refused(tmp_path: Path) -> None:
    path = tmp_path / SDIST_NAME
    path.write_bytes(b"not it")
    for given in (path, tmp_path):
        with pytest.raises(SetupError, match="sha256"):
            fetch_metadata(tmp_path / "cache", {SDIST_VARIABLE: str(given)})


def test_a_given_path_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=SDIST_VARIABLE):
        fetch_metadata(tmp_path, {SDIST_VARIABLE: str(tmp_path / "absent")})


def test_without_network_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(SetupError, match=f"pip download.*{SDIST_VARIABLE}"):
        fetch_metadata(tmp_path, {})


def test_a_damaged_cache_is_named(tmp_path: Path) -> None:
    (tmp_path / module.CACHE_NAME).write_bytes(b"{}")
    with pytest.raises(SetupError, match="delete it"):
        fetch_metadata(tmp_path, {})


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.SYMTYPE])
def test_only_a_regular_golden_file_is_read(
    metadata: module.RuntimeMetadata, tmp_path: Path, kind: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    del metadata  # asked for because it fills the cache
    golden = json.loads((cache_dir() / module.CACHE_NAME).read_bytes())
    path = tmp_path / SDIST_NAME
    _archive(path, GOLDEN_MEMBER, json.dumps(golden).encode() if kind == tarfile.REGTYPE else b"", kind)
    monkeypatch.setattr(module, "SDIST_SHA256", module.hashlib.sha256(path.read_bytes()).hexdigest())
    if kind == tarfile.REGTYPE:
        assert fetch_metadata(tmp_path, {SDIST_VARIABLE: str(path)}).spec_version == 461
        path.unlink()
        assert fetch_metadata(tmp_path, {}).spec_version == 461  # from the cache
    else:
        with pytest.raises(SetupError, match="no usable"):
            fetch_metadata(tmp_path, {SDIST_VARIABLE: str(path)})


def test_what_the_node_serves_is_an_option_of_bytes(metadata: module.RuntimeMetadata) -> None:
    assert metadata.v15_opaque == b"\x01" + opaque(metadata.v15)
    assert metadata.v15.startswith(b"meta\x0f")
    assert metadata.v14.startswith(b"meta\x0e")
