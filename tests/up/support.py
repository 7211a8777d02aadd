"""Reports, statuses and settings for the tests of `brigade up`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from common.reports import MemberReport, Report
from common.units import Hotkey, Revision, RoundId, Uid
from common.wire import MinerStatus, Phase, RoundView, Status, UploadProgress
from tests.support.specs import VALIDATOR
from validator.up.folder import Folder
from validator.up.plan import Settings


def member_report(hotkey: Hotkey, **changes: Any) -> MemberReport:
    """A miner that trained for 8 of 10 seconds at 100 tokens/s."""
    made = MemberReport(
        hotkey=hotkey,
        uid=Uid(1),
        registered_block=1,
        decision="accepted",
        code="",
        tokens_trained=800,
        tokens_merged=800,
        training_ms=8_000,
        online_ms=10_000,
        tokens_per_s=100.0,
        session="s",
        session_tokens=800,
        session_training_ms=8_000,
        session_online_ms=10_000,
        assigned_drop=0.1,
        unseen_drop=0.1,
        quality=1.0,
        round_score=800.0,
        score=800.0,
        why="fine",
    )
    return replace(made, **changes)


def report(round_id: int, *members: MemberReport, before: float = 5.5, after: float = 4.0) -> Report:
    return Report(
        schema=1,
        run="tiny",
        signer=VALIDATOR.hotkey,
        round=RoundId(round_id),
        revision=Revision(round_id + 1),
        committed=True,
        heldout_loss_base=before,
        heldout_loss=after,
        members=members,
    )


def miner_status(hotkey: str, **changes: Any) -> MinerStatus:
    made = MinerStatus(
        hotkey=hotkey,
        uid=2,
        live=True,
        phase=Phase.TRAINING,
        round_tokens=1024,
        tokens_per_s=1000.0,
        upload=None,
        delivered=False,
        score=None,
        silent_s=0.5,
        note="",
    )
    return made.model_copy(update=changes)


UPLOAD = UploadProgress(size_bytes=200 * 1024, sent_bytes=50 * 1024, rate_bps=2_000_000.0)


def status(head: int = 0, *miners: MinerStatus, **changes: Any) -> Status:
    made = Status(
        run="tiny",
        spec_sha256="0" * 64,
        hotkey=VALIDATOR.hotkey,
        server_ns=1,
        leading=True,
        term=1,
        next_seq=5,
        head_revision=head,
        rounds_committed=head,
        rounds_aborted=0,
        round=RoundView(
            round=head,
            base_revision=head,
            phase="open",
            instruction="train",
            seconds_left=60.0,
            freeze_in_s=70.0,
            tokens=2048,
            target_tokens=4096,
        ),
        waiting_for="",
        paused="",
        heldout_loss_first=None,
        heldout_loss_head=None,
        reported_round=None,
        weights_set_block=None,
        weights_round=None,
        miners=list(miners),
    )
    return made.model_copy(update=changes)


def settings(root: Path, **changes: Any) -> Settings:
    made = Settings(
        folder=Folder(root),
        miners=2,
        rounds=3,
        preset="nano",
        seed=0,
        device="cpu",
        threads=None,
        density=None,
        steps=None,
        block_time_s=0.25,
        data=None,
        json_lines=False,
    )
    return replace(made, **changes)
