"""A picture of one simulation: where the tokens went, and where the rounds' time went."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.errors import OperatorError, SetupError
from validator.simulator.run import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence


def check_plot(path: Path) -> None:
    """Raise what ``draw`` would, before anything is simulated."""
    if not path.absolute().parent.is_dir():
        raise OperatorError(f"--plot {path}: there is no folder {path.absolute().parent}")
    _figure()


def draw(came: Outcome, losses: Sequence[float], path: Path) -> None:
    """Write a PNG. Raises ``SetupError`` without matplotlib, ``OperatorError`` where no file can be written."""
    figure = _figure()
    left, middle, right = figure.subplots(1, 3)
    _bars(left, {"merged": came.goodput, **came.lost_by_cause}, "share of possible tokens", log=True)
    _bars(middle, came.phase_seconds, "seconds in phase", log=False)
    right.plot(range(len(losses)), losses)
    right.set_yscale("log")
    right.set_xlabel("revision")
    right.set_title("loss of the trained bowl")
    figure.suptitle(
        f"goodput {came.goodput:.2%}, utilisation {came.utilisation:.2%}, survival {came.survival:.2%}; "
        f"{came.rounds_committed} rounds committed, {came.rounds_aborted} aborted"
    )
    figure.tight_layout()
    try:
        figure.savefig(path, format="png")
    except OSError as error:
        raise OperatorError(f"the plot can't be written to {path}: {error.strerror or error}") from None


def _figure() -> Any:
    """A figure of matplotlib's, which is no requirement of Brigade's; ``Any`` since its types aren't there either."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise SetupError(
            "--plot needs matplotlib: in the checkout, .venv/bin/pip install -c constraints.txt -e '.[plot]'"
        ) from None
    return Figure(figsize=(14, 4.5))


def _bars(axes: Any, values: dict[str, float], title: str, *, log: bool) -> None:
    shown = {name: value for name, value in values.items() if value > 0}
    axes.bar(list(shown), list(shown.values()))
    if log and shown:
        axes.set_yscale("log")
    axes.tick_params(axis="x", rotation=45)
    axes.set_title(title)
