"""What a run is when nobody says otherwise: hyperparameters, round policy, gates and scoring of each preset.

The figures of ``nano`` come from trials of one seed: in six rounds of four miners, steps of 8 × 128 bytes, Muon in
growing rounds with slowly falling densities led to a held-out loss of 1.900 with 1.13 M tokens, AdamW at 2e-3 in rounds
of 60 steps to 1.915 with 1.47 M; what of it came from which change is not known. For the larger presets nothing was
measured: they have what is usual. In trials of a smaller model with rounds of 10 steps densities 4096-1024-512 cost
3.4 % of the loss against dense deltas, and 1.7 % when halved every other round.

A round ends at its token target; its deadline is generous, so that a loaded machine is slow and not worse. The cosine
runs over a fixed number of rounds, whatever ``--rounds`` says, so that a run that is continued keeps its schedule.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from common.errors import OperatorError
from common.model.presets import preset
from common.spec import (
    SCHEMA,
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
from common.units import Hotkey, Sha256

DENSE = 4096
"""All values of a chunk: a delta of density 4,096 of 4,096."""
DEFAULT_PRESET = "nano"
CODECS: dict[str, Literal["topk", "bf16"]] = {"topk": "topk", "bf16": "bf16"}
LEADER, BUTTERFLY = "leader", "butterfly"
REDUCE_KINDS = (LEADER, BUTTERFLY)
REDUNDANCY = 2
AUDITED_SHARE = 4
"""Of the partitions one in so many is computed again by the leader, whatever the owners agree on."""
NORM_FACTOR = 20.0
"""Error feedback makes an old miner's sparse delta larger than a fresh one's, up to 1 / (1 − β) times: in simulations
of returning spot machines 5 to 11 times. What is above the clip factor is scaled down; rejected is what no honest
history explains."""
PLANNED_ROUNDS = 12
"""Rounds over which the learning rate falls."""
KEPT_SNAPSHOTS = 4
KEPT_REVISIONS = 64
"""A run of fewer rounds deletes nothing; a longer one can be rolled back by so many."""
GRACE_S = 3600.0
"""For the download of a snapshot that has begun: 5.6 GB at 12.5 Mbit/s."""
COLD_AFTER_S = 6 * 3600.0
"""A longer pause is a cold start: a night, not a meeting."""


@dataclass(frozen=True)
class PresetPolicy:
    """How a model size is trained."""

    seq_len: int
    batch_size: int
    steps_schedule: tuple[int, ...]
    """Inner steps of one miner in one round, by base revision; the last for all later ones."""
    kind: Literal["adamw", "muon"]
    lr: float
    warmup_steps: int
    density_schedule: tuple[int, ...]
    train_deadline_s: float
    submit_deadline_s: float
    drip_s: float
    partitions: int
    """Of the butterfly. A partition is a range of whole chunks, of which nano has but 206; the others have enough for
    a full subnet of 256 hotkeys and two owners each, which keeps what a miner reads the same for all their numbers."""

    @property
    def round_tokens(self) -> int:
        """Tokens of one miner in one round of full length."""
        return self.steps_schedule[-1] * self.batch_size * self.seq_len


POLICIES = {
    "nano": PresetPolicy(
        seq_len=128,
        batch_size=8,
        steps_schedule=(20, 30, 45, 60),
        kind="muon",
        lr=4e-3,
        warmup_steps=20,
        density_schedule=(4096, 4096, 2048, 1024, 512),
        train_deadline_s=120.0,
        submit_deadline_s=45.0,
        drip_s=10.0,
        partitions=16,
    ),
    "125m": PresetPolicy(
        seq_len=1024,
        batch_size=16,
        steps_schedule=(60,),
        kind="adamw",
        lr=6e-4,
        warmup_steps=300,
        density_schedule=(4096, 4096, 2048, 2048, 1024, 1024, 512, 512, 256, 256, 128, 128, 64),
        train_deadline_s=1800.0,
        submit_deadline_s=600.0,
        drip_s=30.0,
        partitions=256,
    ),
    "1b": PresetPolicy(
        seq_len=2048,
        batch_size=16,
        steps_schedule=(60,),
        kind="adamw",
        lr=3e-4,
        warmup_steps=600,
        density_schedule=(4096, 4096, 2048, 2048, 1024, 1024, 512, 512, 256, 256, 128, 128, 64),
        train_deadline_s=7200.0,
        submit_deadline_s=1800.0,
        drip_s=30.0,
        partitions=256,
    ),
}


@dataclass(frozen=True)
class Choices:
    """What the operator chose of a run; everything else follows from the preset."""

    run: str
    preset: str
    seed: int
    miners: int
    """For which the round's token target is made."""
    codec: str = "topk"
    density: int | None = None
    """Of 4,096, in every round, instead of the preset's schedule."""
    steps: int | None = None
    """Inner steps of one miner in every round, instead of the preset's schedule."""
    num_shards: int = 1
    reduce: str = LEADER


def check(choices: Choices) -> None:
    """Raises OperatorError for choices of which no run could be made that somebody can train."""
    policy(choices.preset)
    if choices.codec not in CODECS:
        raise OperatorError(f"--codec {choices.codec}: choose {' or '.join(CODECS)}")
    if choices.codec == "bf16" and choices.density is not None:
        raise OperatorError("--codec bf16 sends everything: --density is for topk")
    if choices.reduce not in REDUCE_KINDS:
        raise OperatorError(f"--reduce {choices.reduce}: choose {' or '.join(REDUCE_KINDS)}")
    if choices.num_shards != 1:
        raise OperatorError(f"--num-shards {choices.num_shards}: miners train the whole model so far; leave it at 1")


def policy(name: str) -> PresetPolicy:
    """The policy of a preset. Raises OperatorError for one that does not exist."""
    preset(name)
    return POLICIES[name]


def make_spec(
    choices: Choices, netuid: int, owner: Hotkey, validators: Sequence[Hotkey], dataset: Sha256, tokenizer: str
) -> RunSpec:
    """The run's spec. Raises OperatorError for choices that contradict each other."""
    check(choices)
    how = policy(choices.preset)
    try:
        return RunSpec(
            schema=SCHEMA,
            run=choices.run,
            netuid=netuid,
            owner=owner,
            validators=tuple(validators),
            num_shards=choices.num_shards,
            seed=choices.seed,
            model=preset_with_seed(choices),
            data=DataSpec(dataset=dataset, tokenizer=tokenizer, seq_len=how.seq_len),
            inner=_inner(how, choices),
            outer=OuterSpec(lr=1.0, momentum=0.0),
            codec=_codec(how, choices),
            round=_round(how, choices),
            gates=GateSpec(
                norm_factor=NORM_FACTOR,
                clip_factor=2.0,
                cosine_floor=-0.05,
                copy_cosine=0.95,
                max_share=0.5,
                newcomer_share=0.5,
                claim_slack=1.1,
                damping_at=0.5,
            ),
            scoring=ScoringSpec(assigned_sequences=10, unseen_sequences=10, average_rounds=4),
            restart=_restart(how, choices),
            retention=RetentionSpec(snapshots=KEPT_SNAPSHOTS, revisions=KEPT_REVISIONS, grace_s=GRACE_S),
            reduce=_reduce(how, choices),
        )
    except ValueError as error:
        raise OperatorError(f"these settings make no run: {error}") from error


def preset_with_seed(choices: Choices) -> ModelSpec:
    """The preset's model, its first weights drawn from the run's seed."""
    return dataclasses.replace(preset(choices.preset), init_seed=choices.seed)


def _inner(how: PresetPolicy, choices: Choices) -> InnerSpec:
    schedule = _steps_schedule(how, choices)
    decay_steps = sum(schedule[min(revision, len(schedule) - 1)] for revision in range(PLANNED_ROUNDS))
    return InnerSpec(
        kind=how.kind,
        lr=how.lr,
        beta1=0.9,
        beta2=0.95,
        eps=1e-8,
        weight_decay=0.1,
        grad_clip=1.0,
        warmup_steps=min(how.warmup_steps, decay_steps // 4),
        decay_steps=decay_steps,
        min_lr_ratio=0.1,
        batch_size=how.batch_size,
        steps_schedule=schedule,
    )


def _restart(how: PresetPolicy, choices: Choices) -> RestartSpec:
    """A rollback is ordered to be rid of a state that went bad: nothing of it is kept, and the rate rises slowly."""
    return RestartSpec(
        reset_outer=True,
        reset_inner=True,
        rewarm_steps=_steps_schedule(how, choices)[-1] // 2,
        cold_after_s=COLD_AFTER_S,
    )


def _reduce(how: PresetPolicy, choices: Choices) -> ReduceSpec:
    if choices.reduce == LEADER:
        return ReduceSpec("leader", partitions=1, redundancy=1, audits=0)
    return ReduceSpec("butterfly", how.partitions, REDUNDANCY, how.partitions // AUDITED_SHARE)


def _steps_schedule(how: PresetPolicy, choices: Choices) -> tuple[int, ...]:
    return how.steps_schedule if choices.steps is None else (choices.steps,)


def _codec(how: PresetPolicy, choices: Choices) -> CodecSpec:
    dense = choices.codec == "bf16"
    chosen = how.density_schedule if choices.density is None else (choices.density,)
    return CodecSpec(
        kind=CODECS[choices.codec],
        density_schedule=(DENSE,) if dense else chosen,
        magnitude_bits=16 if dense else 8,
        feedback=0.95,
        update_density_factor=4,
    )


def _round(how: PresetPolicy, choices: Choices) -> RoundSpec:
    tokens = _steps_schedule(how, choices)[-1] * how.batch_size * how.seq_len * choices.miners
    return RoundSpec(
        target_tokens=tokens,
        quorum_tokens=max(1, tokens // 4),
        train_deadline_s=how.train_deadline_s,
        submit_deadline_s=how.submit_deadline_s,
        heartbeat_s=1.0,
        member_timeout_s=10.0,
        snapshot_every=5,
        overlap=True,
        drip_s=how.drip_s,
        late_weight=0.8,
    )
