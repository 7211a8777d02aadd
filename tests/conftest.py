"""The order of the suite's files, and how many stories of real processes are lived through at a time.

Those of tests/integration wait for much of their time and the others don't: side by side they use a machine well, and
too many at once more than two cores carry. So the long files are spread among the short ones, and take turns.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

STORIES = Path(__file__).parent / "integration"
AT_ONCE = 2
LOOK_S = 0.2


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A file's tests stay together, in their order; the long files are spread among the others, the first at once."""
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    long = [path for path in files if _is_story(path)]
    short = [path for path in files if not _is_story(path)]
    if not long:
        return
    # Two begin at once; the work of the others lies between the rest, and some of it behind the last.
    gaps = max(1, len(long) // AT_ONCE)
    ordered: list[Path] = []
    for gap in range(gaps):
        ordered += long[gap * AT_ONCE : (gap + 1) * AT_ONCE]
        ordered += short[len(short) * gap // gaps : len(short) * (gap + 1) // gaps]
    ordered += long[gaps * AT_ONCE :]
    items[:] = [item for path in ordered for item in files[path]]


@pytest.fixture(scope="module", autouse=True)
def turn(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A story waits until fewer than ``AT_ONCE`` others are under way in the other processes of this suite."""
    if not _is_story(request.path):
        yield
        return
    shared = tmp_path_factory.getbasetemp().parent
    files = [(shared / f"turn-{number}").open("w") for number in range(AT_ONCE)]
    try:
        while not any(_taken(file.fileno()) for file in files):
            time.sleep(LOOK_S)
        yield
    finally:
        for file in files:
            file.close()


def _is_story(path: Path) -> bool:
    return path.parent == STORIES


def _taken(file: int) -> bool:
    """Whether the lock is ours now; it is let go when the file is closed, or the process ends."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
