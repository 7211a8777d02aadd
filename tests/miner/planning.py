"""A miner's submission in a plan, with the decision that a test wants."""

from __future__ import annotations

from typing import Literal

from common.records import StoredSubmission
from common.runlog.entries import PlanMember
from common.units import Uid

Decision = Literal["accepted", "rejected", "deferred"]


def member(stored: StoredSubmission, decision: Decision = "accepted", code: str = "") -> PlanMember:
    """Its place in a plan."""
    manifest, accepted = stored.manifest, decision == "accepted"
    usual = {"accepted": "", "rejected": "norm_too_large", "deferred": "not_uploaded"}
    return PlanMember(
        shard=manifest.shard,
        hotkey=manifest.signer,
        round=manifest.round,
        base_revision=manifest.base_revision,
        uid=Uid(1),
        registered_block=1,
        delta=manifest.delta,
        manifest_sha256=stored.manifest_record.sha256,
        tokens_claimed=manifest.tokens,
        tokens=manifest.tokens if accepted else 0,
        decision=decision,
        code=code or usual[decision],
        reason="as the test says",
        weight=32.0 if accepted else 0.0,
        scale=32.0 if accepted else 0.0,
    )
