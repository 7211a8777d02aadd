"""What a person, a log or a program sees of a run while it goes on: a live table, plain lines, or JSON lines.

All three take the same calls. The live table is drawn on a terminal; without one, plain lines are written when the
round's phase changes and every ``PLAIN_EVERY_S`` between; JSON lines carry the same facts in the schema of
``common.logs``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol, TextIO

from loguru import logger
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from common.clock import Clock
from common.logs import EVENT_SCHEMA
from common.units import Hotkey, format_bytes, format_duration, format_rate, printable
from common.wire import MinerStatus, Status
from validator.up.summary import Summary, describe

PLAIN_EVERY_S = 10.0


class Display(Protocol):
    """Where the progress of a run is shown."""

    def note(self, text: str, **fields: Any) -> None:
        """Something happened; ``fields`` for programs, with ``event`` as its kind."""
        ...

    def status(self, status: Status) -> None:
        """The run as its validator sees it now."""
        ...

    def summary(self, summary: Summary, then: Sequence[str] = ()) -> None:
        """The end of the run; ``then`` are lines for people about what they can do now."""
        ...

    def close(self) -> None:
        """Give the terminal back. Idempotent."""
        ...


Names = Mapping[Hotkey, str]


def choose_display(json_lines: bool, names: Names, clock: Clock, out: TextIO | None = None) -> Display:
    """JSON lines when asked for, a live table on a terminal, plain lines elsewhere; notes also go to the log."""
    out = out or sys.stdout
    if json_lines:
        return _Noted(JsonLines(out, names, clock))
    return _Noted(LiveTable(Console(file=out), names) if out.isatty() else PlainLines(out, names, clock))


def headline(status: Status) -> str:
    """The run's state in one line."""
    parts = ["PAUSED"] if status.paused else []
    parts.append(f"revision {status.head_revision}")
    if status.round is not None:
        view = status.round
        parts.append(f"round {view.round} {view.phase}")
        parts.append(f"{view.tokens:,}/{view.target_tokens:,} tokens")
        if view.phase in ("open", "closing"):
            parts.append(f"freezes in {format_duration(view.freeze_in_s)}")
    parts.append(f"{status.rounds_committed} committed, {status.rounds_aborted} aborted")
    if status.heldout_loss_head is not None:
        first = f"{status.heldout_loss_first:.3f} → " if status.heldout_loss_first is not None else ""
        parts.append(f"validation loss {first}{status.heldout_loss_head:.3f}")
    return ", ".join(parts)


def waiting_lines(status: Status) -> list[str]:
    """What the run waits for; while it is paused that is its owner, and this tells why and what to type."""
    return [printable(text) for text in (status.waiting_for, status.paused, *status.convicted) if text]


def stall_lines(status: Status, names: Names) -> list[str]:
    """What stands still and since when, with the miners' names; empty while all goes on."""
    return [
        f"STALLED for {format_duration(stall.since_s)} ({stall.code}): {_by_name(printable(stall.text), names)}"
        for stall in status.stalls
    ]


def _by_name(text: str, names: Names) -> str:
    """A sentence with miners called as the table calls them."""
    for hotkey, name in names.items():
        text = text.replace(hotkey[:8], name)
    return text


def upload_cell(miner: MinerStatus) -> str:
    """``42% of 119.3 KiB, 1.2 Mbit/s``; ``delivered`` once it is checked; empty before."""
    if miner.delivered:
        return "delivered"
    if miner.upload is None:
        return ""
    size = miner.upload.size_bytes
    share = miner.upload.sent_bytes / size if size else 1.0
    return f"{share:.0%} of {format_bytes(size)}, {format_rate(miner.upload.rate_bps)}"


def state_cell(miner: MinerStatus) -> str:
    """The miner's phase, or for how long nothing was heard of it."""
    return miner.phase.value if miner.live else f"silent for {format_duration(miner.silent_s)}"


def miner_line(miner: MinerStatus, names: Names) -> str:
    """One miner in one plain line."""
    parts = [state_cell(miner), f"{miner.round_tokens:,} tokens", f"{miner.tokens_per_s:,.0f} tokens/s"]
    if upload := upload_cell(miner):
        parts.append(f"upload {upload}" if not miner.delivered else upload)
    if miner.score is not None:
        parts.append(f"score {miner.score:,.1f}")
    parts += [printable(text) for text in (miner.health or miner.duties, miner.note) if text]
    return f"{name_of(miner, names)} (uid {miner.uid}): " + ", ".join(parts)


def by_uid(status: Status) -> list[MinerStatus]:
    """The miners in the order of their seats, so that lines keep their places."""
    return sorted(status.miners, key=lambda miner: miner.uid)


def name_of(miner: MinerStatus, names: Names) -> str:
    return names.get(Hotkey(miner.hotkey), f"{printable(miner.hotkey[:8])}…")


def status_table(status: Status, names: Names) -> Table:
    """The miners as a table."""
    table = Table(box=SIMPLE_HEAD, expand=False, pad_edge=False, collapse_padding=True)
    for title in ("miner", "uid", "state", "tokens", "tokens/s", "upload", "score", "note"):
        right = title in ("uid", "tokens", "tokens/s", "score")
        # Upload and note give way in a narrow terminal: cut short, since a miner keeps to its line.
        table.add_column(title, justify="right" if right else "left", no_wrap=title not in ("upload", "note"))
    for miner in by_uid(status):
        table.add_row(
            Text(name_of(miner, names)),
            str(miner.uid),
            Text(state_cell(miner), style="" if miner.live else "red"),
            f"{miner.round_tokens:,}",
            f"{miner.tokens_per_s:,.0f}",
            _cut(upload_cell(miner)),
            "" if miner.score is None else f"{miner.score:,.1f}",
            _cut(printable("; ".join(text for text in (miner.health or miner.duties, miner.note[:60]) if text))),
        )
    return table


def _cut(text: str) -> Text:
    return Text(text, no_wrap=True, overflow="ellipsis")


class LiveTable:
    """Redraws a table in place; notes scroll above it."""

    def __init__(self, console: Console, names: Names) -> None:
        self._names = names
        self._live = Live(console=console, auto_refresh=False, transient=False)
        self._live.start()

    def note(self, text: str, **fields: Any) -> None:
        self._live.console.print(Text(text))

    def status(self, status: Status) -> None:
        told = Text("\n".join(waiting_lines(status)), style="bold red" if status.paused else "dim")
        stalls = Text("\n".join(stall_lines(status, self._names)), style="bold red")
        parts = [Text(headline(status)), *([stalls] if status.stalls else [])]
        self._live.update(Group(*parts, status_table(status, self._names), told), refresh=True)

    def summary(self, summary: Summary, then: Sequence[str] = ()) -> None:
        self.close()
        self._live.console.print(Text("\n".join([*describe(summary, self._names), *then])))

    def close(self) -> None:
        self._live.stop()


class PlainLines:
    """One line for each change of the round, and one for each miner with it."""

    def __init__(self, out: TextIO, names: Names, clock: Clock, every_s: float = PLAIN_EVERY_S) -> None:
        self._out = out
        self._names = names
        self._due = _Due(clock, every_s)

    def note(self, text: str, **fields: Any) -> None:
        self._write([text])

    def status(self, status: Status) -> None:
        if self._due(status):
            miners = [f"  {miner_line(miner, self._names)}" for miner in by_uid(status)]
            stalls = stall_lines(status, self._names)
            self._write(
                [
                    headline(status),
                    *(f"  {line}" for line in stalls),
                    *miners,
                    *(f"  {line}" for line in waiting_lines(status)),
                ]
            )

    def summary(self, summary: Summary, then: Sequence[str] = ()) -> None:
        self._write([*describe(summary, self._names), *then])

    def close(self) -> None:
        return

    def _write(self, lines: list[str]) -> None:
        print("\n".join(lines), file=self._out, flush=True)


class JsonLines:
    """One JSON object a line: ``event`` is note, status, summary, or what the caller names."""

    def __init__(self, out: TextIO, names: Names, clock: Clock, every_s: float = PLAIN_EVERY_S) -> None:
        self._out = out
        self._names = names
        self._clock = clock
        self._due = _Due(clock, every_s)

    def note(self, text: str, **fields: Any) -> None:
        self._write({"event": "note", "message": text, **fields})

    def status(self, status: Status) -> None:
        if self._due(status):
            names = {miner.hotkey: name_of(miner, self._names) for miner in status.miners}
            self._write({"event": "status", "names": names, **status.model_dump(mode="json")})

    def summary(self, summary: Summary, then: Sequence[str] = ()) -> None:
        self._write({"event": "summary", **json.loads(summary.to_json())})

    def close(self) -> None:
        return

    def _write(self, fields: dict[str, Any]) -> None:
        at = datetime.fromtimestamp(self._clock.wall_ns() / 1e9, UTC).isoformat(timespec="milliseconds")
        line = {"schema": EVENT_SCHEMA, "at": at, "process": "up", **fields}
        print(json.dumps(line, ensure_ascii=False), file=self._out, flush=True)


class _Noted:
    """A display whose notes stand in this process's log as well."""

    def __init__(self, inner: Display) -> None:
        self._inner = inner
        self.status, self.summary, self.close = inner.status, inner.summary, inner.close

    def note(self, text: str, **fields: Any) -> None:
        logger.bind(**fields).info(text)
        self._inner.note(text, **fields)


class _Due:
    """Whether a status is worth a line: its phase changed, or the last line is old."""

    def __init__(self, clock: Clock, every_s: float) -> None:
        self._clock = clock
        self._every_s = every_s
        self._last: tuple[object, ...] | None = None
        self._next_s = 0.0

    def __call__(self, status: Status) -> bool:
        view = status.round
        key: tuple[object, ...] = (
            status.head_revision,
            status.paused,
            (view.round, view.phase) if view else None,
            status.reported_round,
            status.weights_round,
            tuple(stall.code for stall in status.stalls),
        )
        now_s = self._clock.monotonic_s()
        if key == self._last and now_s < self._next_s:
            return False
        self._last, self._next_s = key, now_s + self._every_s
        return True
