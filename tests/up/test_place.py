"""Looking at a run in a folder: its storage is started only where nobody else is at work."""

from __future__ import annotations

import atexit
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from common.errors import OperatorError
from common.store.config import StorageConfig, save_config
from validator import run_place
from validator.run_place import Asked, find
from validator.up.folder import Folder, locked


class Server:
    """Stands in for the storage server; counts its starts."""

    starts = 0

    def __init__(self, directory: Path, *, bucket: str) -> None:
        self.directory = directory

    def start(self, *, die_with_parent: bool) -> None:
        Server.starts += 1

    def stop(self) -> None:
        return


@pytest.fixture
def at_exit(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """What would be done at the process's end; no server is ever running."""
    kept: list[Callable[[], None]] = []
    monkeypatch.setattr(run_place, "SeaweedServer", Server)
    monkeypatch.setattr(run_place, "is_free", lambda *_: True)
    monkeypatch.setattr(atexit, "register", kept.append)
    monkeypatch.setattr(Server, "starts", 0)
    return kept


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    made = Folder(tmp_path)
    save_config(StorageConfig("http://127.0.0.1:9", "brigade", "key", "secret"), made.storage_config)
    made.run.write_text(json.dumps({"run": "demo"}))
    return made


def test_an_idle_folders_storage_is_started_and_the_folder_is_held_meanwhile(
    folder: Folder, at_exit: list[Callable[[], None]]
) -> None:
    assert find(Asked(folder.root)).run == "demo"
    assert Server.starts == 1
    with pytest.raises(OperatorError, match="at work"), locked(folder):
        pass
    for action in reversed(at_exit):
        action()
    with locked(folder):
        pass


def test_a_storage_that_up_is_starting_again_is_left_to_it(folder: Folder, at_exit: list[Callable[[], None]]) -> None:
    with locked(folder):
        assert find(Asked(folder.root)).run == "demo"
    assert Server.starts == 0
    assert at_exit == []
