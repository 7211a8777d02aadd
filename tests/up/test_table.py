"""What is shown: plain lines without a terminal, JSON lines for programs, a table on a terminal."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from common.clock import ManualClock
from common.units import Hotkey
from common.wire import Phase
from tests.runlog.support import MINERS
from tests.up.support import UPLOAD, miner_status, status
from validator.up.status import _show
from validator.up.table import JsonLines, LiveTable, PlainLines, choose_display, headline, status_table, waiting_lines

FIRST, SECOND, THIRD = (signer.hotkey for signer in MINERS)
NAMES = {Hotkey(FIRST): "miner-1", Hotkey(SECOND): "miner-2"}
BUSY = status(
    3,
    miner_status(FIRST, score=12.5),
    miner_status(SECOND, phase=Phase.UPLOADING, upload=UPLOAD, note="slow link"),
    miner_status(THIRD, live=False, silent_s=75.0, delivered=True),
    waiting_for="2 miners are at work",
    heldout_loss_first=5.5,
    heldout_loss_head=2.25,
)


def test_plain_lines_tell_round_phase_and_every_miner() -> None:
    out = io.StringIO()
    PlainLines(out, NAMES, ManualClock()).status(BUSY)
    lines = out.getvalue().splitlines()
    assert lines[0].startswith("revision 3, round 3 open, 2,048/4,096 tokens")
    assert "5.500 → 2.250" in lines[0]
    assert lines[1].strip() == "miner-1 (uid 2): training, 1,024 tokens, 1,000 tokens/s, score 12.5"
    assert "uploading" in lines[2]
    assert "25% of 200.0 KiB, 2.0 Mbit/s" in lines[2]
    assert "slow link" in lines[2]
    assert "silent for 1m15s" in lines[3]
    assert "delivered" in lines[3]
    assert lines[4].strip() == "2 miners are at work"


def test_who_gets_no_duties_is_told_why_and_until_when() -> None:
    told = "no reduce duties until round 9: it let a round wait for its means"
    shown = status(3, miner_status(FIRST, duties=told, note="slow link"))
    out = io.StringIO()
    PlainLines(out, NAMES, ManualClock()).status(shown)
    assert f"{told}, slow link" in out.getvalue()
    wide = io.StringIO()
    Console(file=wide, width=300).print(status_table(shown, NAMES))
    assert f"{told}; slow link" in wide.getvalue()


def test_plain_lines_come_on_changes_and_now_and_then() -> None:
    out, clock = io.StringIO(), ManualClock()
    plain = PlainLines(out, NAMES, clock, every_s=10.0)
    plain.status(status(1))
    plain.status(status(1))
    assert len(out.getvalue().splitlines()) == 1
    clock.advance(10)
    plain.status(status(1))
    plain.status(status(2))
    assert len(out.getvalue().splitlines()) == 3


def test_json_lines_are_one_object_each_in_one_schema() -> None:
    out = io.StringIO()
    display = JsonLines(out, NAMES, ManualClock())
    display.note("miner-1 started again", event="child", child="miner-1")
    display.status(BUSY)
    note, shown = (json.loads(line) for line in out.getvalue().splitlines())
    assert (note["event"], note["child"], note["schema"]) == ("child", "miner-1", 1)
    assert (shown["event"], shown["head_revision"], shown["names"][FIRST]) == ("status", 3, "miner-1")
    assert shown["miners"][1]["upload"]["sent_bytes"] == 50 * 1024


def test_without_a_terminal_there_is_no_table() -> None:
    out = io.StringIO()
    choose_display(False, NAMES, ManualClock(), out).status(BUSY)
    assert "\x1b" not in out.getvalue()
    assert out.getvalue().startswith("revision 3")


def test_the_table_has_a_row_for_each_miner() -> None:
    console = Console(file=io.StringIO(), width=160, force_terminal=False)
    console.print(status_table(BUSY, NAMES))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for word in (
        "miner-1",
        "uploading",
        "25% of 200.0 KiB",
        "12.5",
        "slow link",
        f"{THIRD[:8]}…",
        "silent for 1m15s",
    ):
        assert word in text


def test_a_miner_keeps_to_one_line_of_a_narrow_terminal() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=False)
    long = status(3, *(m.model_copy(update={"note": "a note that goes on and on and on"}) for m in BUSY.miners))
    console.print(status_table(long, NAMES))
    lines = [line for line in console.file.getvalue().splitlines() if line.strip()]  # type: ignore[attr-defined]
    assert len(lines) == 2 + len(BUSY.miners)
    assert "silent for 1m15s" in lines[-1]
    assert "…" in lines[-1]


def test_the_live_table_gives_the_terminal_back() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=160)
    live = LiveTable(console, NAMES)
    live.status(BUSY)
    live.note("something")
    live.close()
    live.close()
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "something" in text
    assert text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l")  # the cursor is shown again


HOSTILE = "ok\x1b]0;title\x07\x1b[2J\r\nminer-1 (uid 2): \u202efake\x9b"


def test_a_strangers_text_moves_no_cursor_and_begins_no_line() -> None:
    shown = status(3, miner_status(FIRST, note=HOSTILE), waiting_for=HOSTILE)
    plain, live = io.StringIO(), io.StringIO()
    PlainLines(plain, NAMES, ManualClock()).status(shown)
    Console(file=live, width=200).print(status_table(shown, NAMES))
    assert len(plain.getvalue().splitlines()) == 3
    for text in (plain.getvalue(), live.getvalue()):
        assert "fake" in text
        assert all(c.isprintable() for c in text.replace("\n", ""))


def test_brigade_status_shows_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    shown = status(3, miner_status(FIRST, note=HOSTILE), waiting_for=HOSTILE)
    _show(shown, {}, json_lines=False)
    _show(shown, {}, json_lines=True)
    assert all(c.isprintable() for c in capsys.readouterr().out.replace("\n", ""))


def test_a_paused_run_says_so_with_the_reason_and_the_command() -> None:
    shown = status(3, round=None, paused="paused since slot 9 (loss_guard): type: brigade run resume --run tiny")
    assert headline(shown).startswith("PAUSED, revision 3")
    assert waiting_lines(shown)[-1].endswith("brigade run resume --run tiny")


def test_the_headline_tells_when_uploads_must_be_there() -> None:
    assert "freezes in 1m10s" in headline(status(0))
