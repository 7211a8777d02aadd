"""Children are restarted with a said reason, drained in order, and never left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from common.clock import ManualClock, SystemClock
from common.errors import SetupError
from validator.up.backoff import GIVE_UP, MOST_S, STEADY_S, after_exit
from validator.up.supervisor import Child, ChildSpec, Supervisor, inherited, look_after

WAIT_S = 30.0


def eventually(condition: Callable[[], bool]) -> None:
    """Wait for a condition that must come true; the limit only ends a test that has failed."""
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s, "it did not happen"
        time.sleep(0.01)


def python(name: str, script: str, order: int = 0) -> ChildSpec:
    return ChildSpec(name, (sys.executable, "-S", "-c", script), order=order)


def sleeper(name: str, order: int = 0) -> ChildSpec:
    return python(name, "import time; time.sleep(600)", order)


def await_end(child: Child) -> None:
    """Wait until it has ended, and leave it to the supervisor to reap."""
    assert child.process is not None
    os.waitid(os.P_PID, child.process.pid, os.WEXITED | os.WNOWAIT)


def is_gone(pid: int) -> bool:
    """Whether a process has ended; one that only waits to be reaped by somebody else counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def supervisor(said: list[str], clock: ManualClock) -> Iterator[Supervisor]:
    made = Supervisor(clock, lambda _, text: said.append(text))
    yield made
    made.kill()


def test_a_dead_child_is_started_again_after_a_pause_and_the_reason_is_said(
    supervisor: Supervisor, clock: ManualClock, said: list[str]
) -> None:
    child = supervisor.start(python("worker", "import sys; print('out of luck', file=sys.stderr); sys.exit(7)"))
    await_end(child)
    supervisor.poll()
    assert "worker ended with code 7 (out of luck); restart in 0.5 s" in said
    assert child.pid is None
    clock.advance(0.4)
    supervisor.poll()
    assert child.restarts == 0
    clock.advance(0.2)
    supervisor.poll()
    assert child.restarts == 1
    assert child.pid is not None


def test_a_killed_child_comes_back(supervisor: Supervisor, clock: ManualClock, said: list[str]) -> None:
    child = supervisor.start(sleeper("worker"))
    assert child.pid is not None
    first = child.pid
    os.kill(first, signal.SIGKILL)
    await_end(child)
    supervisor.poll()
    clock.advance(1)
    supervisor.poll()
    assert "worker was killed by signal 9; restart in 0.5 s" in said
    assert child.pid not in (None, first)


def test_a_child_with_wrong_arguments_is_given_up_at_once(supervisor: Supervisor) -> None:
    child = supervisor.start(python("worker", "import sys; print('no such option', file=sys.stderr); sys.exit(2)"))
    await_end(child)
    with pytest.raises(SetupError, match="no such option"):
        look_after(supervisor)
    assert child.restarts == 0


def test_backoff_grows_is_bounded_and_starts_anew_after_a_steady_life() -> None:
    pauses, failures = [], 0
    for _ in range(GIVE_UP - 1):
        verdict = after_exit("worker", 1, 0.1, failures, "")
        failures = verdict.failures
        pauses.append(verdict.restart_in_s)
    assert pauses == sorted(pauses)  # type: ignore[type-var]
    assert pauses[0] == 0.5
    assert pauses[-1] == MOST_S
    assert after_exit("worker", 1, STEADY_S, failures, "").restart_in_s == 0.5
    assert after_exit("worker", 1, 0.1, failures, "").restart_in_s is None


def test_draining_asks_higher_orders_first_and_leaves_nothing(supervisor: Supervisor, tmp_path: Path) -> None:
    note = tmp_path / "ended"
    script = (
        "import signal, sys, time, pathlib\n"
        f"def end(*_): f = open({str(note)!r}, 'a'); f.write(sys.argv[1]); f.close(); sys.exit(0)\n"
        f"signal.signal(signal.SIGTERM, end); pathlib.Path({str(tmp_path)!r}, 'up-' + sys.argv[1]).touch()\n"
        "time.sleep(600)\n"
    )
    for name, order in (("server", 1), ("miner", 3), ("validator", 2)):
        supervisor.start(ChildSpec(name, (sys.executable, "-S", "-c", script, name[0]), order=order))
    eventually(lambda: all((tmp_path / f"up-{first}").exists() for first in "smv"))
    pids = [child.pid for child in supervisor.children.values()]
    assert Supervisor.drain(supervisor, time.sleep) == []
    assert note.read_text() == "mvs"
    assert all(pid is not None and is_gone(pid) for pid in pids)


def test_what_does_not_listen_is_killed_within_the_time(said: list[str], tmp_path: Path) -> None:
    supervisor = Supervisor(SystemClock(), lambda _, text: said.append(text))
    script = (
        "import signal, time, pathlib; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        f"pathlib.Path({str(tmp_path)!r}, 'deaf').touch(); time.sleep(600)"
    )
    child = supervisor.start(python("deaf", script))
    eventually((tmp_path / "deaf").exists)
    pid = child.pid
    assert supervisor.drain(time.sleep, timeout_s=0.2) == ["deaf"]
    assert pid is not None
    assert is_gone(pid)


def test_what_a_child_started_goes_with_it(supervisor: Supervisor, tmp_path: Path) -> None:
    note = tmp_path / "grandchild"
    script = (
        "import subprocess, sys, time\n"
        "p = subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(note)!r}, 'w').write(f'{{p.pid}}\\n'); time.sleep(600)\n"
    )
    child = supervisor.start(python("parent", script))
    eventually(lambda: note.exists() and note.read_text().endswith("\n"))
    assert child.process is not None
    child.process.kill()
    await_end(child)
    supervisor.poll()
    eventually(lambda: is_gone(int(note.read_text())))


def test_no_orphan_when_the_supervising_process_is_killed(tmp_path: Path) -> None:
    note = tmp_path / "pids"
    script = (
        "import sys, time\n"
        "from common.clock import SystemClock\n"
        "from validator.up.supervisor import ChildSpec, Supervisor\n"
        "s = Supervisor(SystemClock(), print)\n"
        "sleeper = (sys.executable, '-S', '-c', 'import time; time.sleep(600)')\n"
        "pids = [s.start(ChildSpec(name, sleeper)).pid for name in ('a', 'b')]\n"
        f"open({str(note)!r}, 'w').write(' '.join(map(str, pids)) + '\\n')\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script])
    eventually(lambda: note.exists() and note.read_text().endswith("\n"))
    pids = [int(word) for word in note.read_text().split()]
    parent.kill()
    parent.wait()
    eventually(lambda: all(is_gone(pid) for pid in pids))


def test_what_is_left_of_a_group_is_killed_before_its_id_is_free(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = supervisor.start(python("worker", "pass"))
    await_end(child)
    reaped: list[bool] = []
    assert child.process is not None
    process = child.process
    monkeypatch.setattr(os, "killpg", lambda *_: reaped.append(process.returncode is not None))
    assert child.pid is None  # looking reaps nothing
    supervisor.poll()
    assert reaped == [False]
    assert process.returncode == 0


def test_a_group_that_is_not_ours_is_no_trouble(supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    child = supervisor.start(python("worker", "pass"))
    await_end(child)

    def refuse(*_: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "killpg", refuse)
    supervisor.poll()
    assert child.restart_at_s is not None


def test_settings_for_us_are_none_for_children(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BRIGADE_MAX_TOKENS_PER_S", "1")
    monkeypatch.setenv("BRIGADE_BITTENSOR_SDIST", "/archive")
    note = tmp_path / "environment"
    script = f"import os, json; open({str(note)!r}, 'w').write(json.dumps(dict(os.environ)))"
    await_end(supervisor.start(python("worker", script)))
    names = {name for name in json.loads(note.read_text()) if name.startswith("BRIGADE_")}
    assert names == {"BRIGADE_BITTENSOR_SDIST"}
    assert inherited({"PATH": "/bin", "BRIGADE_DIR": "x"}) == {"PATH": "/bin"}
