"""Did a plan leave out a submission that its own leader had given a receipt for? Pure.

A leader's receipt promises that its plan of the round names the sender's line: accepted, rejected or deferred. So a
plan convicts its leader when it names nobody of (shard, hotkey) on its base, although the receipt is of the same round
and the same term. Nothing less does, for each of the rest has an honest history:

- another term: a takeover, or a restart, came between receipt and plan, and the heir knows only what is in the bucket;
- a later attempt: it names the submissions of the first by the log's rules, and the first may be another leader's;
- another round: what came late, or was adopted from an aborted round, has a receipt of the round it was made for;
- another submission of the line is named: all of a line are cumulative, and the newest whole one stands for it.
"""

from __future__ import annotations

from dataclasses import dataclass

from common.records import StoredSubmission
from common.runlog.entries import Entry, RoundFrozen


@dataclass(frozen=True)
class Judged:
    """Whether the leader is guilty, and why or why not."""

    guilty: bool
    why: str


def is_first_plan(entry: Entry) -> bool:
    """Whether an entry is the plan that decided whom its round names."""
    return isinstance(entry.data, RoundFrozen) and entry.data.attempt == 0


def judge(submission: StoredSubmission, entry: Entry) -> Judged:
    """Compare a receipt with a plan. ``entry`` counts in the run's log, so that its signer led its term."""
    plan, receipt, manifest = entry.data, submission.receipt, submission.manifest
    if not isinstance(plan, RoundFrozen) or plan.attempt != 0:
        return Judged(False, "it is not the first plan of a round")
    if receipt.round != plan.round:
        return Judged(False, f"the receipt is of round {receipt.round}, the plan of round {plan.round}")
    if (receipt.term, receipt.signer) != (entry.term, entry.signer):
        return Judged(False, f"the receipt is of {receipt.signer} in term {receipt.term}: another has made the plan")
    if manifest.base_revision != plan.base_revision:
        return Judged(False, f"it was made on revision {manifest.base_revision}, the plan is on {plan.base_revision}")
    line = receipt.shard, receipt.hotkey
    if any((m.shard, m.hotkey) == line and m.base_revision == plan.base_revision for m in plan.members):
        return Judged(False, "the plan names a submission of this miner on its base")
    return Judged(
        True,
        f"{entry.signer} left out {receipt.hotkey}: the plan of round {plan.round} (slot {entry.seq}) names nothing of "
        f"it on shard {receipt.shard}, and its leader had given a receipt in the same term {entry.term}",
    )
