"""``brigade storage``: the server in the foreground, and the look at a bucket."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from common.errors import BrigadeError, OperatorError, SetupError
from common.store.cli import app
from common.store.config import StorageConfig, load_config, save_config
from tests.support.storage import quick_store

COMMAND = [sys.executable, "-c", "from common.store.cli import app; app()", "serve"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_says_when_it_is_ready_and_ends_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    command = [*COMMAND, "--dir", str(tmp_path / "s3"), "--bucket", "mine"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as serving:
        assert serving.stdout is not None
        line = serving.stdout.readline()
        config = load_config(tmp_path / "s3" / "storage.json")
        assert line.startswith(f"storage ready: {config.endpoint} bucket mine")
        assert config.secret_key not in line
        store = quick_store(config)
        store.put("x", b"x")
        serving.send_signal(number)
        assert serving.wait(60) == 0
        assert serving.stdout.read() == ""
    with pytest.raises(BrigadeError):
        store.get("x", max_bytes=1)


def probe_with(*arguments: str, **environment: str) -> tuple[str, BaseException | None]:
    result = CliRunner().invoke(app, ["probe", *arguments], env=environment)
    return result.output, result.exception


def test_probe_of_a_good_bucket(config: StorageConfig, tmp_path: Path) -> None:
    save_config(config, tmp_path / "storage.json")
    output, failure = probe_with("--config", str(tmp_path / "storage.json"))
    assert failure is None
    assert "will do" in output
    keys = {"BRIGADE_STORAGE_ACCESS_KEY": config.access_key, "BRIGADE_STORAGE_SECRET_KEY": config.secret_key}
    output, failure = probe_with("--endpoint", config.endpoint, "--bucket", config.bucket, **keys)
    assert failure is None
    assert config.secret_key not in output


def test_probe_refuses_what_contradicts_and_what_is_missing(config: StorageConfig, tmp_path: Path) -> None:
    save_config(config, tmp_path / "storage.json")
    path = str(tmp_path / "storage.json")
    for arguments in (["--config", path, "--bucket", "x"], ["--bucket", "only"], ["--config", path + ".none"]):
        assert isinstance(probe_with(*arguments)[1], OperatorError)
    wrong = {"BRIGADE_STORAGE_ACCESS_KEY": config.access_key, "BRIGADE_STORAGE_SECRET_KEY": "wrong"}
    assert isinstance(probe_with("--endpoint", config.endpoint, "--bucket", config.bucket, **wrong)[1], SetupError)
