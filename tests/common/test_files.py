"""Files appear whole and private, and a lock keeps a second process out."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from common.errors import SetupError
from common.files import PUBLIC, atomic_file, lock_file, write_atomically
from common.ports import is_free


@pytest.mark.parametrize(("mode", "expected"), [(None, 0o600), (PUBLIC, 0o644)])
def test_a_file_is_replaced_whole_with_the_mode_that_was_asked_for(
    tmp_path: Path, mode: int | None, expected: int
) -> None:
    path = tmp_path / "deep" / "file"
    for content in (b"old", b"new"):
        write_atomically(path, content) if mode is None else write_atomically(path, content, mode)
        assert path.read_bytes() == content
    assert stat.S_IMODE(path.stat().st_mode) == expected
    assert os.listdir(path.parent) == ["file"]


def test_what_fails_half_way_leaves_the_old_file_and_no_litter(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")
    with pytest.raises(KeyboardInterrupt):
        _write_half(path)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def _write_half(path: Path) -> None:
    with atomic_file(path, 3) as file:
        file.write(b"ne")
        raise KeyboardInterrupt


def test_a_full_disk_is_said_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="no room"), atomic_file(tmp_path / "x", 1 << 60):
        raise AssertionError("must not be entered")
    assert os.listdir(tmp_path) == []


def test_a_lock_keeps_others_out_until_it_is_let_go_or_its_process_dies(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    held = lock_file(path, SetupError("taken"))
    with pytest.raises(SetupError, match="taken"):
        lock_file(path, SetupError("taken"))
    held.close()
    program = (
        "import os, signal, sys; from pathlib import Path; from common.errors import SetupError\n"
        "from common.files import lock_file\n"
        "held = lock_file(Path(sys.argv[1]), SetupError('taken')); os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", program, str(path)], check=False).returncode == -9
    lock_file(path, SetupError("taken")).close()


def test_a_port_is_free_until_somebody_listens_on_it() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        assert not is_free(server.getsockname()[1])
