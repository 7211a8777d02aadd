"""What a session's facts say of an upload whose round is over."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from miner.survey import _worth_ending


def session(sent_bytes: int, opened_round: int = 4, planned: bool = False, live: bool = True) -> Any:
    """One that sends 100 bytes for round 3."""
    sending = SimpleNamespace(name=("3", "hash"), round=3)
    opened = SimpleNamespace(round=opened_round, plan=object() if planned else None)
    return SimpleNamespace(
        view=SimpleNamespace(state=SimpleNamespace(open_round=opened)),
        desk=SimpleNamespace(sending=sending),
        meter=SimpleNamespace(view=lambda: SimpleNamespace(size_bytes=100, sent_bytes=sent_bytes)),
        ledger=SimpleNamespace(live=[SimpleNamespace(sent=sending)] if live else []),
    )


@pytest.mark.parametrize(
    ("case", "worth"),
    [
        (session(50), True),
        (session(49), False),
        (session(90, opened_round=3), False),
        (session(90, planned=True), False),
        (session(90, live=False), False),
    ],
    ids=["half is there", "most is missing", "its own round", "the plan is made", "it is settled"],
)
def test_an_upload_to_an_aborted_round_is_ended_when_most_of_it_is_there(case: Any, worth: bool) -> None:
    """The next round on the base takes it; what replaces it would begin at its first byte."""
    assert _worth_ending(case) is worth
