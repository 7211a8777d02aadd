"""The scripted leader that the agent's tests mine for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.miner.leader import Leader


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[Leader]:
    with Leader(tmp_path) as made:
        yield made
