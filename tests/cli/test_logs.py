"""Logs: bounded, in one schema, and without secrets."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from loguru import logger

from common import logs
from common.store.config import StorageConfig


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    logs._hidden.clear()
    logs._forced_dir = None
    logs._current = None
    logger.remove()
    logging.getLogger().handlers.clear()


def test_a_file_rotates_and_stays_bounded(tmp_path: Path) -> None:
    file = logs.BoundedFile(tmp_path / "a.log", max_bytes=100, kept=2)
    for number in range(100):
        file.write(f"line {number:04d}\n")
    file.close()
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert set(sizes) == {"a.log", "a.log.1", "a.log.2"}
    assert max(sizes.values()) <= 100
    assert (tmp_path / "a.log").read_text().endswith("line 0099\n")


def test_secrets_and_url_signatures_are_never_written(tmp_path: Path) -> None:
    out = io.StringIO()
    path = logs.setup_logging("x", tmp_path, stderr=out)
    logs.hide("correct-horse-battery")
    logger.info("key correct-horse-battery")
    try:
        raise ValueError("put http://host/k?X-Amz-Signature=abcdef0123&x=1 failed")
    except ValueError:
        logger.exception("with correct-horse-battery")
    assert path is not None
    for text in (out.getvalue(), path.read_text()):
        assert "***" in text
        assert "correct-horse" not in text
        assert "abcdef0123" not in text


def test_the_keys_of_a_bucket_are_hidden_as_soon_as_they_are_known() -> None:
    config = StorageConfig("http://127.0.0.1:1", "brigade", "access-key-of-a-test", "secret-key-of-a-test")
    assert logs.redact(f"{config.access_key} {config.secret_key}") == "*** ***"


def test_json_lines_have_one_schema() -> None:
    out = io.StringIO()
    logs.setup_logging("miner-1", None, True, stderr=out)
    logger.bind(event="round_opened", round=3).info("round {} opened", 3)
    line = json.loads(out.getvalue())
    assert line["schema"] == logs.EVENT_SCHEMA
    assert (line["process"], line["level"], line["message"]) == ("miner-1", "INFO", "round 3 opened")
    assert (line["event"], line["round"]) == ("round_opened", 3)


def test_braces_and_tags_in_messages_do_no_harm(tmp_path: Path) -> None:
    path = logs.setup_logging("x", tmp_path, stderr=io.StringIO())
    logger.bind(event="{odd}", note="<red>").info("a {{b}} <c> {}", "{d}")
    assert path is not None
    assert "{d}" in path.read_text()
    assert "<c>" in path.read_text()


def test_other_libraries_warnings_come_along(tmp_path: Path) -> None:
    path = logs.setup_logging("x", tmp_path, stderr=io.StringIO())
    logging.getLogger("some.library").warning("careful: %s", "{x}")
    assert path is not None
    assert "some.library: careful: {x}" in path.read_text()


def test_a_process_may_be_told_where_to_log(tmp_path: Path) -> None:
    logs.log_into(tmp_path / "all")
    path = logs.setup_logging("x", tmp_path / "own", stderr=io.StringIO())
    assert path == tmp_path / "all" / "x.log" == logs.log_path()


def test_a_strangers_text_in_a_message_moves_no_cursor_and_forges_no_line(tmp_path: Path) -> None:
    out = io.StringIO()
    path = logs.setup_logging("x", tmp_path, stderr=out)
    logger.warning("it says {}", "a\x1b[2J\r\n00:00:00 ERROR x: forged\x9b")
    assert path is not None
    for text in (out.getvalue(), path.read_text()):
        assert all(c.isprintable() for c in text.replace("\n", ""))
        assert not any(line.startswith("00:00:00") for line in text.splitlines())
        assert "forged" in text
