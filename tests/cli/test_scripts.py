"""scripts/demo adds a number of rounds only where nobody else may have said one."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "scripts" / "demo"


def started_with(folder: Path, *args: str, **environment: str) -> list[str]:
    """The arguments that the demo gives to `brigade`, which is a stand-in here."""
    (folder / "lib").mkdir()
    (folder / "bin").mkdir()
    shutil.copy(DEMO, folder / "demo")
    (folder / "lib" / "env.sh").write_text(f"brigade_env() {{ VENV={folder}; }}\n")
    (folder / "bin" / "brigade").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (folder / "bin" / "brigade").chmod(0o755)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("BRIGADE_")}
    done = subprocess.run(
        [folder / "demo", *args], env=clean | environment, capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.split()


def test_six_rounds_unless_somebody_says_otherwise(tmp_path: Path) -> None:
    assert started_with(tmp_path, "--seed", "1") == ["up", "--rounds", "6", "--seed", "1"]


@pytest.mark.parametrize(
    ("args", "environment"),
    [
        (["--rounds", "2"], {}),
        (["--rounds=2"], {}),
        ([], {"BRIGADE_ROUNDS": "2"}),
        ([], {"BRIGADE_CONFIG": "settings.toml"}),
    ],
)
def test_what_was_said_is_not_overridden(args: list[str], environment: dict[str, str], tmp_path: Path) -> None:
    assert started_with(tmp_path, *args, **environment) == ["up", *args]
