"""A run spec small enough that a test can train, merge and verify it in milliseconds."""

from __future__ import annotations

import dataclasses
from typing import Any

from common.identity import KeypairSigner
from common.spec import (
    CodecSpec,
    DataSpec,
    GateSpec,
    InnerSpec,
    ModelSpec,
    OuterSpec,
    ReduceSpec,
    RestartSpec,
    RetentionSpec,
    RoundSpec,
    RunSpec,
    ScoringSpec,
)
from common.units import Sha256

OWNER = KeypairSigner.from_uri("//Owner")
VALIDATOR = KeypairSigner.from_uri("//Validator")


def tiny_spec(**changes: Any) -> RunSpec:
    """A one-shard run of a model of about 9,000 parameters; ``changes`` replace top-level fields."""
    spec = RunSpec(
        schema=1,
        run="demo",
        netuid=2,
        owner=OWNER.hotkey,
        validators=(VALIDATOR.hotkey,),
        num_shards=1,
        seed=0,
        model=ModelSpec(
            vocab_size=256,
            hidden_size=16,
            num_layers=2,
            num_heads=2,
            num_kv_heads=1,
            ffn_size=32,
            max_seq_len=32,
            rope_theta=10_000.0,
            norm_eps=1e-5,
            tied_head=True,
            init_std=0.02,
            init_seed=0,
        ),
        data=DataSpec(dataset=Sha256("0" * 64), tokenizer="bytes", seq_len=16),
        inner=InnerSpec(
            kind="adamw",
            lr=2e-3,
            beta1=0.9,
            beta2=0.95,
            eps=1e-8,
            weight_decay=0.0,
            grad_clip=1.0,
            warmup_steps=2,
            decay_steps=200,
            min_lr_ratio=0.1,
            batch_size=2,
            steps_schedule=(4,),
        ),
        outer=OuterSpec(lr=1.0, momentum=0.0),
        codec=CodecSpec(
            kind="topk", density_schedule=(4096, 512), magnitude_bits=16, feedback=0.95, update_density_factor=4
        ),
        round=RoundSpec(
            target_tokens=256,
            quorum_tokens=32,
            train_deadline_s=30.0,
            submit_deadline_s=10.0,
            heartbeat_s=0.25,
            member_timeout_s=2.0,
            snapshot_every=2,
            overlap=True,
            drip_s=1.0,
            late_weight=0.5,
        ),
        gates=GateSpec(
            norm_factor=5.0,
            clip_factor=2.0,
            cosine_floor=-0.3,
            copy_cosine=0.95,
            max_share=0.5,
            newcomer_share=0.5,
            claim_slack=1.1,
            damping_at=0.5,
        ),
        scoring=ScoringSpec(assigned_sequences=4, unseen_sequences=4, average_rounds=4),
        retention=RetentionSpec(snapshots=4, revisions=64, grace_s=60.0),
        restart=RestartSpec(reset_outer=True, reset_inner=True, rewarm_steps=8, cold_after_s=60.0),
        reduce=ReduceSpec("leader", partitions=4, redundancy=1, audits=0),
    )
    return dataclasses.replace(spec, **changes)
