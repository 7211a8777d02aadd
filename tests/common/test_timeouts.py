"""Waiting times that contradict each other never start a process."""

from __future__ import annotations

import pytest

from common import timeouts


@pytest.mark.parametrize(
    ("name", "value"),
    [("LEASE_RENEW_S", 6.0), ("STORE_READ_S", 14.0), ("NONCE_RETENTION_S", 1.0), ("STORAGE_STOP_S", 20.0)],
)
def test_contradictory_times_are_refused_in_words(monkeypatch: pytest.MonkeyPatch, name: str, value: float) -> None:
    timeouts.check()
    monkeypatch.setattr(timeouts, name, value)
    with pytest.raises(ValueError, match="contradictory waiting times: "):
        timeouts.check()
