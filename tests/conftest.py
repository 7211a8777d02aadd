"""The order of the suite: tests on real processes, which mostly wait, come first, and the others run beside them."""

from __future__ import annotations

import pytest

LONGEST = "tests/integration/"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """No test depends on this order."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))
