"""The learning bench's figures: a table for people, and a plot."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from scripts.benches.learning_arms import ARMS, Result
from scripts.benches.learning_engine import Tally

MOST_CHURN_COST = 0.02
COMPARISONS = (
    ("(i) eight under churn against the same eight without, equal merged tokens", "churn-dense", "many-dense"),
    ("(i) the same, sparse", "churn-sparse", "many-sparse"),
    ("(ii) eight, dense, against one machine with the same global batch and steps", "many-dense", "one"),
    ("(ii) the same, sparse", "many-sparse", "one"),
    ("(iii) eight, dense, against one miner alone", "many-dense", "alone"),
    ("(iii) the same, sparse", "many-sparse", "alone"),
)


def table(results: Sequence[Result]) -> str:
    """Losses of every side and seed at its rate, the tried rates, and the comparisons seed by seed."""
    lines = ["", "side           rate     loss by seed                 mean     rates tried (first seed)"]
    lines += [_side(name, results) for name in _names(results)]
    lines += ["", "comparison (change of the loss by seed; mean)"]
    for title, one, other in COMPARISONS:
        changes = _changes(results, one, other)
        if changes:
            told = "  ".join(f"{change:+7.2%}" for change in changes)
            lines.append(f"{title}: {told}; {statistics.mean(changes):+.2%}{_verdict(title, changes)}")
    lines += ["", *_churned(results)]
    return "\n".join(lines)


def plot(results: Sequence[Result], folder: Path) -> Path | str:
    """Write the mean curves over the seeds to a PNG; a text instead of its path where matplotlib is not installed."""
    try:
        import matplotlib
    except ImportError:
        return "none (matplotlib is not installed)"
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5))
    for name in _names(results):
        chosen = _chosen(results, name)
        for result in chosen:
            first = result is chosen[0]
            colour = f"C{_names(results).index(name)}"
            axes.plot(*zip(*result.curve, strict=True), color=colour, alpha=0.7, label=name if first else None)
    axes.set_xlabel("sequential steps (merged tokens / tokens of a step)")
    axes.set_ylabel("held-out loss, nats a token")
    axes.set_yscale("log")
    axes.legend()
    axes.grid(alpha=0.3)
    path = folder / "learning.png"
    figure.savefig(path, dpi=120, bbox_inches="tight")
    return path


def _names(results: Sequence[Result]) -> list[str]:
    found = {result.job.arm.name for result in results}
    return [arm.name for arm in ARMS if arm.name in found]


def _chosen(results: Sequence[Result], name: str) -> list[Result]:
    """The side's runs at its rate, by seed."""
    mine = [result for result in results if result.job.arm.name == name]
    first = mine[0].job.seed
    rate = min((r for r in mine if r.job.seed == first), key=lambda r: r.loss).job.rate
    return sorted((r for r in mine if r.job.rate == rate), key=lambda r: r.job.seed)


def _side(name: str, results: Sequence[Result]) -> str:
    chosen = _chosen(results, name)
    losses = [result.loss for result in chosen]
    tried = [r for r in results if r.job.arm.name == name and r.job.seed == chosen[0].job.seed]
    rates = "  ".join(f"{r.job.rate:g}: {r.loss:.4f}" for r in sorted(tried, key=lambda r: r.job.rate))
    told = "  ".join(f"{loss:.4f}" for loss in losses)
    edge = len(tried) > 1 and chosen[0].job.rate in (min(r.job.rate for r in tried), max(r.job.rate for r in tried))
    rates += "  (the best lies at the grid's edge)" if edge else ""
    return f"{name:13} {chosen[0].job.rate:7g}  {told:27}  {statistics.mean(losses):.4f}   {rates}"


def _changes(results: Sequence[Result], one: str, other: str) -> list[float]:
    if not {one, other} <= set(_names(results)):
        return []
    pairs = zip(_chosen(results, one), _chosen(results, other), strict=True)
    return [a.loss / b.loss - 1 for a, b in pairs]


def _verdict(title: str, changes: Sequence[float]) -> str:
    if not title.startswith("(i)"):
        return ""
    holds = statistics.mean(changes) <= MOST_CHURN_COST
    return f" (at most {MOST_CHURN_COST:+.0%}: {'holds' if holds else 'MISSED'})"


def _churned(results: Sequence[Result]) -> list[str]:
    return [_fate(r.job.arm.name, r.job.seed, r.tally) for r in results if r.tally is not None and r.job.arm.churn]


def _fate(name: str, seed: int, tally: Tally) -> str:
    survived = tally.tokens_merged / tally.tokens_trained
    lost = f"{tally.deaths} deaths, {tally.late} late, {tally.rejected} rejected"
    return f"{name} seed {seed}: {lost}, {survived:.1%} of the trained tokens merged in {tally.rounds} rounds"
