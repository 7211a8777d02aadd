"""What a run came to: ``summary.json``, from the log, the reports and the weights on chain. Pure.

Definitions (goodput, utilisation, survival) are those of the design's section 8: goodput is tokens merged over what
the machines could have trained at their own median speed in the time they were online; utilisation is time training
over time online; survival is tokens merged over tokens trained. A token that was merged a revision late counts by its
weight. What is trained is counted when it is trained, for whichever round it will be.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from common.reports import MemberReport, Report
from common.runlog.state import RunState
from common.units import Hotkey, RoundId, Uid, format_bytes
from validator.up.merged import Merged

SCHEMA = 1


@dataclass(frozen=True)
class MinerSummary:
    """One miner over the whole run."""

    hotkey: Hotkey
    uid: Uid
    tokens_trained: int
    tokens_merged: int
    score: float


@dataclass(frozen=True)
class Summary:
    """The whole run; the fields of ``summary.json``. Losses in nats per token, sizes in bytes."""

    schema: int
    val_loss_first: float | None
    """None when no report tells."""
    val_loss_last: float | None
    rounds_committed: int
    rounds_aborted: int
    tokens_trained: int
    tokens_merged: int
    tokens_late: int
    """Of the tokens that were merged, in full number, those that came a revision late; not in ``summary.json``."""
    goodput: float
    utilisation: float
    survival: float
    delta_bytes: int
    """Mean size of the merged deltas' objects."""
    dense_bytes: int
    """Four bytes for each parameter."""
    compression: float
    weights: dict[str, int]
    """The validator's weights on chain, u16 by uid."""
    miners: tuple[MinerSummary, ...]
    load_average: float
    """Mean of the machine's one-minute load while the run was watched."""
    notes: tuple[str, ...] = ()
    """What people should know of the figures; not in ``summary.json``."""

    def to_json(self) -> str:
        fields = asdict(self)
        del fields["notes"], fields["tokens_late"]
        return json.dumps(fields, indent=2) + "\n"


def summarise(
    state: RunState,
    merged: Merged,
    reports: Sequence[Report],
    uids: Mapping[Hotkey, Uid],
    weights: Mapping[Uid, int],
    dense_bytes: int,
    load_average: float,
) -> Summary:
    """All figures of a run. ``reports`` in order of rounds, one a round; ``uids`` are the miners on the subnet now."""
    trained = _trained(reports, merged)
    by_hotkey = _by_hotkey(reports)
    could_tokens = sum(_could(members) for members in by_hotkey.values())
    online_ms = sum(member.online_ms for members in by_hotkey.values() for member in members)
    training_ms = sum(member.training_ms for members in by_hotkey.values() for member in members)
    total = sum(trained.values())
    sizes = [member.delta.size_bytes for member in merged.members]
    delta_bytes = round(statistics.fmean(sizes)) if sizes else 0
    shares = {
        "goodput": (state.tokens_merged, could_tokens),
        "utilisation": (training_ms, online_ms),
        "survival": (state.tokens_merged, total),
    }
    return Summary(
        schema=SCHEMA,
        val_loss_first=_first_loss(reports),
        val_loss_last=_loss(reports[-1].heldout_loss) if reports else None,
        rounds_committed=state.rounds_committed,
        rounds_aborted=state.rounds_aborted,
        tokens_trained=total,
        tokens_merged=state.tokens_merged,
        tokens_late=merged.late,
        **{name: _share(part, whole) for name, (part, whole) in shares.items()},
        delta_bytes=delta_bytes,
        dense_bytes=dense_bytes,
        compression=round(dense_bytes / delta_bytes, 2) if delta_bytes else 0.0,
        weights={str(uid): weights.get(uid, 0) for uid in sorted(uids.values())},
        miners=tuple(_miner(hotkey, uid, trained, merged, by_hotkey) for hotkey, uid in _by_uid(uids)),
        load_average=round(load_average, 2),
        notes=(
            *(_above_one(name, part, whole) for name, (part, whole) in shares.items() if part > whole > 0),
            *_unsettled(state, trained, merged),
        ),
    )


def describe(summary: Summary, names: Mapping[Hotkey, str]) -> list[str]:
    """The summary in lines for people."""
    first, last = (_nats(loss) for loss in (summary.val_loss_first, summary.val_loss_last))
    late = f", {summary.tokens_late:,} of them late" if summary.tokens_late else ""
    lines = [
        f"rounds       {summary.rounds_committed} committed, {summary.rounds_aborted} aborted",
        f"validation   {first} at revision 0 → {last} at the head (nats per token)",
        f"tokens       {summary.tokens_trained:,} trained, {summary.tokens_merged:,} merged{late}",
        f"goodput      {summary.goodput:.1%}, utilisation {summary.utilisation:.1%}, survival {summary.survival:.1%}",
        f"delta        {format_bytes(summary.delta_bytes)} for {format_bytes(summary.dense_bytes)} of dense float32:"
        f" {summary.compression:g}×",
        f"machine      load average {summary.load_average:g}",
    ]
    for miner in summary.miners:
        weight = summary.weights.get(str(miner.uid), 0)
        lines.append(
            f"{names.get(miner.hotkey, miner.hotkey[:10]):12} uid {miner.uid}, {miner.tokens_merged:,} tokens merged,"
            f" score {miner.score:,.1f}, weight on chain {weight}"
        )
    return lines + [f"note         {note}" for note in summary.notes]


def _trained(reports: Sequence[Report], merged: Merged) -> dict[Hotkey, int]:
    """Tokens trained by each miner: what reports count, and at least what its signed manifests say.

    A report counts what a miner's session grew by since the report before, so a round without one (its validator
    died) is in the next; only rounds behind the last report count by their manifests. And the last report may be a
    heartbeat behind the last manifest.
    """
    last = max((report.round for report in reports), default=RoundId(-1))
    signed, reported = merged.claimed(), merged.claimed(within=last)
    totals: dict[Hotkey, int] = {}
    for report in reports:
        for member in report.members:
            totals[member.hotkey] = totals.get(member.hotkey, 0) + member.tokens_trained
    for hotkey, tokens in signed.items():
        totals[hotkey] = totals.get(hotkey, 0) + tokens - reported.get(hotkey, 0)
    return {hotkey: max(total, signed.get(hotkey, 0)) for hotkey, total in totals.items()}


def _unsettled(state: RunState, trained: Mapping[Hotkey, int], merged: Merged) -> list[str]:
    """What a round that was still open had of the tokens trained: those of its plan, and those of no plan."""
    if state.open_round is None:
        return []
    settled = merged.claimed(within=RoundId(state.open_round.round - 1))
    tokens = sum(max(0, total - settled.get(hotkey, 0)) for hotkey, total in trained.items())
    return [f"up to {tokens:,} tokens trained are of the open round and not merged yet"] if tokens else []


def _by_hotkey(reports: Sequence[Report]) -> dict[Hotkey, list[MemberReport]]:
    found: dict[Hotkey, list[MemberReport]] = {}
    for report in reports:
        for member in report.members:
            found.setdefault(member.hotkey, []).append(member)
    return found


def _could(members: Sequence[MemberReport]) -> float:
    """Tokens that a miner could have trained at its own median speed in the time it was online."""
    speeds = [member.tokens_per_s for member in members if member.tokens_per_s > 0]
    online_s = sum(member.online_ms for member in members) / 1000
    return statistics.median(speeds) * online_s if speeds else 0.0


def _miner(
    hotkey: Hotkey,
    uid: Uid,
    trained: Mapping[Hotkey, int],
    merged: Merged,
    by_hotkey: Mapping[Hotkey, Sequence[MemberReport]],
) -> MinerSummary:
    own = by_hotkey.get(hotkey, ())
    return MinerSummary(
        hotkey=hotkey,
        uid=uid,
        tokens_trained=trained.get(hotkey, 0),
        tokens_merged=merged.counted.get(hotkey, 0),
        score=round(own[-1].score, 6) if own else 0.0,
    )


def _by_uid(uids: Mapping[Hotkey, Uid]) -> list[tuple[Hotkey, Uid]]:
    return sorted(uids.items(), key=lambda item: item[1])


def _share(part: float, whole: float) -> float:
    """A share between 0 and 1. Rounding and clocks may bring a part a little above its whole, which is noted."""
    return round(min(1.0, part / whole), 4) if whole > 0 else 0.0


def _above_one(name: str, part: float, whole: float) -> str:
    return f"{name} came to {part / whole:.2%} and counts as 100%: its parts are timed by different clocks"


def _first_loss(reports: Sequence[Report]) -> float | None:
    """The loss at revision 0, which only the report of a round that began there tells."""
    return next((_loss(r.heldout_loss_base) for r in reports if r.revision - int(r.committed) == 0), None)


def _loss(value: float) -> float:
    return round(value, 4)


def _nats(loss: float | None) -> str:
    return "unknown" if loss is None else f"{loss:.3f}"
