"""A leader whose plans leave out miners of its choice, on order; everything else of it is the validator itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any


def leave_out(orders: Path) -> None:
    """From now on the plans of this process name nothing of the hotkeys that ``orders`` holds when they are made."""
    import validator.effects

    honest = validator.effects.judge

    def judge(spec: Any, base: Any, merged: Any, entrants: Sequence[Any], *rest: Any) -> Any:
        victims = orders.read_text().split() if orders.exists() else []
        return honest(spec, base, merged, [one for one in entrants if one.hotkey not in victims], *rest)

    validator.effects.judge = judge
