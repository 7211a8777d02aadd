"""The end of `brigade up`: a run that failed has its summary, too, and trouble with the summary is said."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from common.errors import BrigadeError, Fatal, Rejected, Retryable, SetupError
from common.units import Revision
from tests.up.support import settings
from validator.up import cli
from validator.up.folder import Folder
from validator.up.run import LocalRun
from validator.up.summary import Summary
from validator.up.supervisor import Supervisor
from validator.up.table import Display
from validator.up.watch import GaveUp

SUMMARY = Summary(1, 5.5, 4.0, 1, 0, 10, 8, 0, 0.9, 0.9, 0.8, 5, 100, 20.0, {}, (), 1.0)


class Shown:
    """A display that keeps what it is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.summaries: list[Summary] = []
        self.then: list[str] = []

    def note(self, text: str, **fields: Any) -> None:
        self.notes.append(text)

    def summary(self, summary: Summary, then: Sequence[str] = ()) -> None:
        self.summaries.append(summary)
        self.then = list(then)


class Run:
    """A local run that is up."""

    def start(self) -> Any:
        return SimpleNamespace(until=Revision(6), state=SimpleNamespace(head=Revision(0)))


def ending(
    monkeypatch: pytest.MonkeyPatch, watched: Callable[[], None], told: Callable[[], Summary]
) -> Callable[[Path], tuple[Shown, int]]:
    class Watcher:
        load_average = 1.0
        head = Revision(3)

        def __init__(self, *_: Any) -> None:
            return

        def until_done(self, _: Any) -> None:
            watched()

    monkeypatch.setattr(cli, "Watcher", Watcher)
    monkeypatch.setattr(cli, "_outcome", lambda *_: told())
    shown = Shown()

    def train(root: Path) -> tuple[Shown, int]:
        how = settings(root)
        run, supervisor = cast(LocalRun, Run()), cast(Supervisor, None)
        return shown, cli._train(how, run, supervisor, cast(Display, shown))

    return train


def fail(error: BaseException) -> Callable[[], Any]:
    def raising() -> Any:
        raise error

    return raising


def test_a_run_that_reached_its_goal_ends_well(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shown, code = ending(monkeypatch, lambda: None, lambda: SUMMARY)(tmp_path)
    assert code == 0
    assert shown.summaries == [SUMMARY]
    (line,) = shown.then
    assert line.startswith(f"summary: {tmp_path}/summary.json; next: ")
    assert f"run verify --dir {tmp_path}" in line


def test_a_stopped_run_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said: list[str] = []
    monkeypatch.setattr(Shown, "summary", lambda self, summary, then=(): said.extend(then))
    with pytest.raises(cli.Stopped):
        ending(monkeypatch, fail(cli.Stopped()), lambda: SUMMARY)(tmp_path)
    assert said[-1].startswith("stopped at revision 3 of 6; the same command goes on")


def test_the_next_step_is_called_as_this_one_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [str(tmp_path / ".venv/bin/brigade"), "up"])
    assert "next: .venv/bin/brigade run log --dir " in cli.next_steps(Folder(tmp_path / "run"))[0]


@pytest.mark.parametrize("error", [GaveUp("no commit"), SetupError("a child was given up"), cli.Stopped()])
def test_a_run_that_failed_has_its_summary_and_its_error(
    error: BaseException, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(type(error)):
        ending(monkeypatch, fail(error), lambda: SUMMARY)(tmp_path)
    assert json.loads((tmp_path / "summary.json").read_text())["tokens_merged"] == 8


@pytest.mark.parametrize("trouble", [Retryable("away"), Rejected("odd", "odd"), Fatal("broken"), BrigadeError("other")])
def test_a_summary_that_cannot_be_made_is_said(
    trouble: BrigadeError, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shown, code = ending(monkeypatch, lambda: None, fail(trouble))(tmp_path)
    assert code == 1
    assert shown.notes == [f"no summary: {trouble}"]
