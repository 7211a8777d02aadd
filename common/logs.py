"""Logs of one process: plain or JSON lines on stderr, and a file that rotates and stays bounded.

Invariants: at most ``KEPT + 1`` files of ``MAX_BYTES`` each per process; no secret that was given to ``hide`` and no
signature of a presigned URL reaches either place, tracebacks included; values of variables are never printed.

An event is a message with fields: ``logger.bind(event="round_opened", round=3).info("round 3 opened")``. As JSON it is
one line with ``schema, at, level, process, message`` and, flat, ``event`` and its fields.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import traceback
from collections.abc import Mapping
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from loguru import logger

from common.units import printable

if TYPE_CHECKING:
    from loguru import Message

MAX_BYTES = 8 << 20
KEPT = 3
EVENT_SCHEMA = 1
_URL_SECRET = re.compile(r"(X-Amz-(?:Signature|Credential|Security-Token)=)[^&\s\"']+")
_LEVELS = frozenset({"DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"})
_RESERVED = frozenset({"schema", "at", "level", "process", "message"})

_hidden: set[str] = set()
_current: Path | None = None
_forced_dir: Path | None = None


def log_into(folder: Path) -> None:
    """All logs of this process go into ``folder``, whatever its command would choose (``brigade --log-dir``)."""
    global _forced_dir
    _forced_dir = folder


def hide(secret: str) -> None:
    """Never write ``secret`` into a log, in whole."""
    if len(secret) >= 8:  # a shorter text would blank out innocent words
        _hidden.add(secret)


def redact(text: str) -> str:
    """``text`` without hidden secrets and URL signatures."""
    for secret in _hidden:
        text = text.replace(secret, "***")
    return _URL_SECRET.sub(r"\1***", text)


def log_path() -> Path | None:
    """The file that this process logs to, once ``setup_logging`` has named one."""
    return _current


class Stream(Protocol):
    """Where lines go."""

    def write(self, text: str, /) -> Any: ...

    def flush(self) -> None: ...


class BoundedFile:
    """Appends text to ``path``; when it is full, it becomes ``path.1``, that ``path.2``, and the oldest goes."""

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES, kept: int = KEPT) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._kept = kept
        self._file: FileIO | None = None
        """Made with the first text, so that a process that has nothing to say leaves no file."""

    def write(self, text: str) -> None:
        data = text.encode("utf-8", "backslashreplace")[: self._max_bytes]
        file = self._file or self._open()
        if file.tell() + len(data) > self._max_bytes:
            file = self._rotate(file)
        file.write(data)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _open(self) -> FileIO:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._path.open("ab", buffering=0)
        return self._file

    def _rotate(self, full: FileIO) -> FileIO:
        full.close()
        for number in range(self._kept - 1, 0, -1):
            older = self._path.with_name(f"{self._path.name}.{number}")
            if older.exists():
                older.replace(self._path.with_name(f"{self._path.name}.{number + 1}"))
        self._path.replace(self._path.with_name(f"{self._path.name}.1"))
        return self._open()


def setup_logging(
    name: str,
    log_dir: Path | None = None,
    json_lines: bool = False,
    *,
    stderr: Stream | None = None,
    level: str = "INFO",
) -> Path | None:
    """Send this process's log to stderr and, with ``log_dir``, to ``<log_dir>/<name>.log``; returns that path.

    Warnings of other libraries that use ``logging`` come along. May be called again; the last call counts.
    """
    global _current
    log_dir = _forced_dir or log_dir
    logger.remove()
    logger.configure(extra={"process": name}, patcher=_clean)
    logger.add(_stream_sink(stderr or sys.stderr, json_lines), level=level, format=_plain, diagnose=False)
    _current = None
    if log_dir is not None:
        _current = log_dir / f"{name}.log"
        file = BoundedFile(_current)
        logger.add(lambda message: file.write(redact(str(message))), level="DEBUG", format=_stamped, diagnose=False)
    logging.basicConfig(handlers=[_Forward()], level=logging.WARNING, force=True)
    return _current


def quiet_stderr(name: str, log_dir: Path) -> Path:
    """Log to the file only, for a process that draws on the terminal."""
    path = setup_logging(name, log_dir, stderr=_Nowhere())
    assert path is not None
    return path


def json_line(record: Mapping[str, Any]) -> str:
    """A log record as one JSON object: the event schema."""
    fields = {key: value for key, value in record["extra"].items() if key not in _RESERVED}
    line = {
        "schema": EVENT_SCHEMA,
        "at": record["time"].isoformat(timespec="milliseconds"),
        "level": record["level"].name,
        "process": record["extra"].get("process", ""),
        "message": record["message"],
        **fields,
    }
    if record["exception"] is not None:
        line["traceback"] = "".join(traceback.format_exception(record["exception"].value))
    return json.dumps(line, default=str, ensure_ascii=False)


def _clean(record: Any) -> None:
    """Messages quote strangers: no control characters, and no line that looks like another record."""
    record["message"] = "\n    ".join(printable(line) for line in record["message"].splitlines())


class _Nowhere:
    """A stream that keeps nothing."""

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        return


class _Forward(logging.Handler):
    """Hands records of the standard library's logging to loguru."""

    def emit(self, record: logging.LogRecord) -> None:
        level = record.levelname if record.levelname in _LEVELS else record.levelno
        logger.opt(exception=record.exc_info).log(level, f"{record.name}: {record.getMessage()}")


def _stream_sink(stream: Stream, json_lines: bool) -> Any:
    def write(message: Message) -> None:
        text = json_line(message.record) + "\n" if json_lines else str(message)
        try:
            stream.write(redact(text))
            stream.flush()
        except (BrokenPipeError, ValueError):
            return  # whoever read our stderr is gone; the file goes on

    return write


def _plain(record: Any) -> str:
    return "{time:HH:mm:ss} {level: <7} {extra[process]}: {message}\n{exception}"


def _stamped(record: Any) -> str:
    return "{time:YYYY-MM-DD HH:mm:ss.SSS} {level: <7} {name}:{line} {message}{extra}\n{exception}".replace(
        "{extra}", _fields(record)
    )


def _fields(record: Any) -> str:
    """The event's fields behind the message, braces escaped for loguru's formatter."""
    fields = {key: value for key, value in record["extra"].items() if key != "process"}
    if not fields:
        return ""
    text = json.dumps(fields, default=str, ensure_ascii=False)
    return " " + text.replace("{", "{{").replace("}", "}}").replace("<", r"\<")
