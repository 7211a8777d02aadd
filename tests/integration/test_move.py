"""A run gets new storage keys, and then another bucket, while it goes on: no process is started again."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from common.errors import SetupError
from common.runlog.entries import StorageMoved
from common.runlog.verify import verify_run
from common.store.config import load_config, save_config
from common.store.port import AccessDenied
from common.store.retry import NO_RETRIES
from common.store.s3 import S3Store
from tests.integration.support import SLOWED, begun, commits, spec_for
from tests.support.localrun import brigade
from tests.support.rig import Rig
from tests.support.rigging import running
from tests.support.storage import running_server

MINERS = ["miner-1", "miner-2"]


def test_new_keys_and_then_a_new_bucket_without_a_restart(tmp_path: Path) -> None:
    with running(tmp_path / "run", spec_for(2), miners=2) as rig, running_server(tmp_path / "second") as (_, second):
        rig.start_validator()
        for name in MINERS:
            rig.start_miner(name, *SLOWED)
        begun(rig, MINERS)
        pids = {name: part.process.pid for name, part in rig.parts.items()}

        rotate_keys(rig)
        commits(rig, 2)

        target = replace(second, prefix="moved")
        save_config(target, tmp_path / "second.json")
        moved = move(rig, tmp_path / "second.json")
        assert moved.returncode == 0, moved.stderr
        assert "the chain says so" in moved.stdout
        save_config(target, rig.folder / "storage.json")
        rig.look_in(target)
        rig.until(lambda: any(isinstance(entry.data, StorageMoved) for entry in rig.entries), "the move")
        commits(rig, 1)
        rig.server.kill()
        commits(rig, 2)

        assert {name: part.process.pid for name, part in rig.parts.items()} == pids
        assert rig.voids == 0
        for part in rig.parts.values():
            part.kill()
        report = verify_run(S3Store(target), rig.spec.run)
        assert report.state.moved is not None
        assert report.state.head >= rig.head


def rotate_keys(rig: Rig) -> None:
    """The service takes other keys from now on, and the operator puts them into the validator's file."""
    config = replace(load_config(rig.server.config_path), access_key="rotated-access", secret_key="rotated-secret")
    rig.server.stop()
    save_config(config, rig.server.config_path)
    rig.server.start(die_with_parent=True, ready_within_s=120.0)
    save_config(config, rig.folder / "storage.json")
    rig.look_in(config)
    with pytest.raises((AccessDenied, SetupError)):
        S3Store(rig.storage, policy=NO_RETRIES).put("probe/old-keys", b"x")


def move(rig: Rig, to: Path) -> subprocess.CompletedProcess[str]:
    url = f"ws://127.0.0.1:{rig.ports['chain']}"
    words = ("run", "move", "--to", str(to), "--dir", str(rig.folder), "--run", rig.spec.run)
    return brigade(*words, "--chain", url, "--netuid", str(rig.spec.netuid))
