"""The run spec: everything about a run that never changes, and whose SHA-256 the owner commits on chain.

Plain frozen dataclasses with a sentence under each field. Invariant: ``decode_spec(encode_spec(s)) == s``; floats are
rounded to float32 when a spec is built, so that what was hashed is what is used.
"""

from __future__ import annotations

import dataclasses
import math
import struct
from dataclasses import dataclass
from typing import Any, Literal

from common import canonical
from common.errors import Rejected
from common.typed import from_json, to_json
from common.units import Hotkey, Revision, Sha256, sha256_hex

SCHEMA = 1
MAX_SPEC_BYTES = 256 * 1024


# What follows bounds the memory and the time that reading and preparing somebody's spec can cost.
MAX_TENSOR_VALUES = 1 << 32
MAX_LAYERS = 512
MAX_SHARDS = 64
MAX_SEQ_LEN = 1 << 20
MAX_BATCH = 1 << 14
MAX_STEPS = 1 << 20
MAX_SCHEDULE = 1 << 12
"""Entries of a schedule by revision."""
MAX_TRIAL = 1 << 14
"""Sequences on which a delta may be tried."""
MAX_WAIT_S = 30 * 86400.0
MAX_KEPT = 1 << 20
"""Revisions that a run may be told to keep."""
MAX_PARTITIONS = 2048
MAX_REDUNDANCY = 8


@dataclass(frozen=True)
class _Rounded:
    """Rounds every float field to float32 at construction."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, float):
                if not math.isfinite(value):
                    raise ValueError(f"{field.name} must be finite")
                object.__setattr__(self, field.name, struct.unpack(">f", struct.pack(">f", value))[0])
        self.check()

    def check(self) -> None:
        """Raise ValueError when fields contradict each other."""


def _require(condition: bool, text: str) -> None:
    if not condition:
        raise ValueError(text)


@dataclass(frozen=True)
class ModelSpec(_Rounded):
    """A Llama-style decoder."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    """Heads of keys and values; divides num_heads (grouped-query attention)."""
    ffn_size: int
    max_seq_len: int
    rope_theta: float
    norm_eps: float
    tied_head: bool
    """Whether the output projection is the embedding."""
    init_std: float
    init_seed: int

    def check(self) -> None:
        sizes = (self.vocab_size, self.hidden_size, self.num_layers, self.num_heads, self.num_kv_heads, self.ffn_size)
        _require(all(0 < size <= 1 << 20 for size in sizes), "model sizes must be between 1 and 2^20")
        tables = self.hidden_size * max(self.vocab_size, self.ffn_size, self.hidden_size)
        _require(tables <= MAX_TENSOR_VALUES, f"a tensor of {tables} values is larger than {MAX_TENSOR_VALUES}")
        _require(self.num_layers <= MAX_LAYERS, f"num_layers must be at most {MAX_LAYERS}")
        _require(2 <= self.max_seq_len <= MAX_SEQ_LEN, f"max_seq_len must be between 2 and {MAX_SEQ_LEN}")
        _require(self.hidden_size % self.num_heads == 0, "hidden_size must be a multiple of num_heads")
        _require(self.num_heads % self.num_kv_heads == 0, "num_heads must be a multiple of num_kv_heads")
        _require((self.hidden_size // self.num_heads) % 2 == 0, "rotary embedding needs an even head size")
        _require(self.rope_theta > 1, "rope_theta must be above 1")
        _require(self.norm_eps > 0 and self.init_std > 0, "norm_eps and init_std must be positive")


@dataclass(frozen=True)
class DataSpec(_Rounded):
    """What the run trains on."""

    dataset: Sha256
    """SHA-256 of the dataset's index, which names every token file by its hash."""
    tokenizer: str
    """Identifier of the tokenizer, as in the index."""
    seq_len: int
    """Tokens of a training sequence."""

    def check(self) -> None:
        _require(self.seq_len >= 2, "seq_len must be at least 2")


@dataclass(frozen=True)
class InnerSpec(_Rounded):
    """The optimizer that a miner runs, with warm-up and cosine decay on the run's global step."""

    kind: Literal["adamw", "muon"]
    """muon: orthogonalised momentum for the matrices of the layers, AdamW for everything else."""
    lr: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    grad_clip: float
    """Largest L2 norm of a step's gradient."""
    warmup_steps: int
    """Global steps over which the learning rate rises from 0."""
    decay_steps: int
    """Global step at which the cosine reaches min_lr_ratio × lr, and stays there."""
    min_lr_ratio: float
    batch_size: int
    """Sequences in one inner step of one miner."""
    steps_schedule: tuple[int, ...]
    """Inner steps of a round by base revision, the last for all later ones: a young model wants short rounds. By so
    many steps a round advances the learning rate's schedule, however many a miner really takes."""

    def check(self) -> None:
        _require(self.lr > 0 and self.eps > 0 and self.grad_clip > 0, "lr, eps and grad_clip must be positive")
        _require(0 <= self.beta1 < 1 and 0 <= self.beta2 < 1, "beta1 and beta2 must be in [0, 1)")
        _require(self.weight_decay >= 0 and 0 <= self.min_lr_ratio <= 1, "weight_decay ≥ 0, min_lr_ratio in [0, 1]")
        _require(0 <= self.warmup_steps < self.decay_steps, "warmup_steps must be below decay_steps")
        _require(1 <= self.batch_size <= MAX_BATCH, f"batch_size must be between 1 and {MAX_BATCH}")
        _require(1 <= len(self.steps_schedule) <= MAX_SCHEDULE, f"steps_schedule must have 1 to {MAX_SCHEDULE} entries")
        good = all(1 <= steps <= MAX_STEPS for steps in self.steps_schedule)
        _require(good, f"the steps of a round must be between 1 and {MAX_STEPS}")

    def steps_of(self, base_revision: Revision) -> int:
        """Inner steps of a round on ``base_revision``."""
        return self.steps_schedule[min(base_revision, len(self.steps_schedule) - 1)]

    def first_step(self, revision: Revision) -> int:
        """Global step at which training on ``revision`` begins."""
        early, full = self.steps_schedule[:revision], self.steps_schedule[-1]
        return sum(early) + (revision - len(early)) * full


@dataclass(frozen=True)
class OuterSpec(_Rounded):
    """The step that turns an update into the next revision."""

    lr: float
    momentum: float
    """Nesterov momentum μ; 0 keeps no outer momentum."""

    def check(self) -> None:
        _require(self.lr > 0 and 0 <= self.momentum < 1, "outer lr must be positive and momentum in [0, 1)")


@dataclass(frozen=True)
class CodecSpec(_Rounded):
    """How deltas and updates are compressed."""

    kind: Literal["topk", "bf16"]
    density_schedule: tuple[int, ...]
    """Values kept of each 4,096, by base revision (an aborted round repeats its density); the last holds for all later
    revisions. bf16 has (4096,)."""
    magnitude_bits: Literal[8, 16]
    feedback: float
    """β of error feedback: how much of the residual lives on."""
    update_density_factor: int
    """An update keeps this many times a delta's density, at most all."""

    def check(self) -> None:
        good = 1 <= len(self.density_schedule) <= MAX_SCHEDULE
        _require(good, f"density_schedule must have 1 to {MAX_SCHEDULE} entries")
        _require(all(1 <= k <= 4096 for k in self.density_schedule), "a density lies between 1 and 4096")
        _require(self.kind == "topk" or self.density_schedule == (4096,), "bf16 is dense: its schedule is (4096,)")
        _require(self.kind == "topk" or self.magnitude_bits == 16, "bf16 has values of 16 bits: magnitude_bits is 16")
        _require(0 <= self.feedback <= 1 and self.update_density_factor >= 1, "feedback in [0, 1], factor at least 1")

    def delta_density(self, base_revision: int) -> int:
        """Values of each 4,096 that a delta on ``base_revision`` keeps."""
        return self.density_schedule[min(base_revision, len(self.density_schedule) - 1)]

    def update_density(self, base_revision: int) -> int:
        """Values of each 4,096 that the update of ``base_revision`` keeps."""
        return min(4096, self.update_density_factor * self.delta_density(base_revision))


@dataclass(frozen=True)
class RoundSpec(_Rounded):
    """When a round ends."""

    target_tokens: int
    """Tokens of all live members at which a round of full length closes, if the deadline has not come first; see
    ``RunSpec.target_tokens``."""
    quorum_tokens: int
    """Fewest merged tokens for the commit of a round of full length; see ``RunSpec.quorum_tokens``."""
    train_deadline_s: float
    """Longest training part of a round; then members are told to submit what they have."""
    submit_deadline_s: float
    """Longest time from closing to the freeze: encode, upload and check. URLs die at its end."""
    heartbeat_s: float
    """Interval of a miner's heartbeats."""
    member_timeout_s: float
    """Silence after which a miner no longer counts as live."""
    snapshot_every: int
    """A full snapshot is stored every so many revisions."""
    overlap: bool
    """Whether miners go on training while a round closes and merges."""
    drip_s: float
    """A miner sends what it has at least so often, so that its death costs no more; 0 sends nothing before the end."""
    late_weight: float
    """What a token counts for that was trained on the revision before the round's base."""

    def check(self) -> None:
        _require(0 < self.quorum_tokens <= self.target_tokens, "quorum_tokens must be in (0, target_tokens]")
        _require(self.heartbeat_s > 0, "heartbeat_s must be positive")
        _require(self.member_timeout_s >= 3 * self.heartbeat_s, "member_timeout_s must be at least 3 heartbeats")
        _require(min(self.train_deadline_s, self.submit_deadline_s) > 0, "deadlines must be positive")
        longest = max(self.train_deadline_s, self.submit_deadline_s, self.member_timeout_s)
        _require(longest <= MAX_WAIT_S, f"no time of a round may be longer than {MAX_WAIT_S} s")
        _require(self.snapshot_every >= 1, "snapshot_every must be at least 1")
        _require(0 <= self.drip_s <= MAX_WAIT_S, f"drip_s must be between 0 and {MAX_WAIT_S}")
        _require(0 < self.late_weight <= 1, "late_weight must be in (0, 1]")


@dataclass(frozen=True)
class GateSpec(_Rounded):
    """Which deltas may enter a plan."""

    norm_factor: float
    """A delta whose norm is more than this many medians is rejected."""
    clip_factor: float
    """A delta above this many medians is scaled down to it."""
    cosine_floor: float
    """Smallest cosine to the robust mean of the others."""
    copy_cosine: float
    """Two deltas that agree more than this are copies: the later one is rejected."""
    max_share: float
    """Largest share of the weight that one miner may have, and all miners of one coldkey together; with n of them the
    cap never goes below 2/n, so that few can make up the whole."""
    newcomer_share: float
    """Largest share of the weight that all hotkeys have together that were never merged before, beside others."""
    claim_slack: float
    """Tokens count up to this many times what the observed time and the evidence allow."""
    damping_at: float
    """Share of the target tokens below which the outer step is damped, by the square root of what there is."""

    def check(self) -> None:
        _require(0 < self.clip_factor <= self.norm_factor, "clip_factor must be in (0, norm_factor]")
        _require(-1 <= self.cosine_floor < 1, "cosine_floor must be in [-1, 1)")
        _require(0 < self.copy_cosine <= 1, "copy_cosine must be in (0, 1]")
        _require(0 < self.max_share <= 1, "max_share must be in (0, 1]")
        _require(0 < self.newcomer_share <= 1, "newcomer_share must be in (0, 1]")
        _require(self.claim_slack >= 1, "claim_slack must be at least 1")
        _require(0 < self.damping_at <= 1, "damping_at must be in (0, 1]")


@dataclass(frozen=True)
class ScoringSpec(_Rounded):
    """How work becomes reward."""

    assigned_sequences: int
    """Sequences of a miner's own data on which its delta is tried."""
    unseen_sequences: int
    """Sequences nobody was assigned, drawn after the freeze."""
    average_rounds: int
    """Rounds over which scores are averaged (exponential, this many to fall to 1/e)."""

    def check(self) -> None:
        sequences = (self.assigned_sequences, self.unseen_sequences)
        _require(all(1 <= count <= MAX_TRIAL for count in sequences), f"sequences must be between 1 and {MAX_TRIAL}")
        _require(self.average_rounds >= 1, "average_rounds must be at least 1")


@dataclass(frozen=True)
class ReduceSpec(_Rounded):
    """Who computes the mean of a round's deltas."""

    kind: Literal["leader", "butterfly"]
    """leader: the leader alone. butterfly: the miners, a partition each, and the leader checks them."""
    partitions: int
    """Ranges that a delta is cut into; its manifest names each by hash. What a miner has to read in a round stays the
    same however many miners there are, as long as there are no more of them than partitions × redundancy."""
    redundancy: int
    """Owners of a partition, whose copies must agree bit for bit. 1 with the leader alone."""
    audits: int
    """Partitions that the leader computes in a round though their copies agree, drawn after the copies are there. As
    many as there are partitions make it certain that nothing false is committed, at the cost of a whole reduction.
    0 with the leader alone."""

    def check(self) -> None:
        _require(1 <= self.partitions <= MAX_PARTITIONS, f"partitions must be between 1 and {MAX_PARTITIONS}")
        if self.kind == "leader":
            _require(self.redundancy == 1, "a leader that reduces alone makes one copy: redundancy must be 1")
            _require(self.audits == 0, "a leader that reduces alone checks nobody: audits must be 0")
            return
        _require(2 <= self.redundancy <= MAX_REDUNDANCY, f"redundancy must be between 2 and {MAX_REDUNDANCY}")
        _require(0 <= self.audits <= self.partitions, "audits must be between 0 and partitions")


@dataclass(frozen=True)
class RestartSpec(_Rounded):
    """What begins anew after a rollback, and after a pause so long that the run went cold."""

    reset_outer: bool
    """Whether a rollback sets the outer momentum and the updates' residual to zero."""
    reset_inner: bool
    """Whether a rollback clears the moments of the miners' optimizers; a cold start always does."""
    rewarm_steps: int
    """Global steps over which the learning rate rises from 0 again, on top of its schedule; 0: it does not."""
    cold_after_s: float
    """A longer pause ends in a cold start."""

    def check(self) -> None:
        _require(0 <= self.rewarm_steps <= MAX_STEPS, f"rewarm_steps must be between 0 and {MAX_STEPS}")
        _require(0 < self.cold_after_s <= MAX_WAIT_S, f"cold_after_s must be positive and at most {MAX_WAIT_S}")


@dataclass(frozen=True)
class RetentionSpec(_Rounded):
    """What stays in the bucket; older objects are named in the log, and deleted when nobody can be using them."""

    snapshots: int
    """So many of the newest snapshots of the head's lineage stay, and all that later revisions need."""
    revisions: int
    """So many of the newest revisions stay whole: those that a rollback can go back to, and whoever is behind needs."""
    grace_s: float
    """From the death of the last upload URL to the deletion: longer than a snapshot's download on a slow line."""

    def check(self) -> None:
        _require(2 <= self.snapshots <= MAX_KEPT, f"snapshots must be between 2 and {MAX_KEPT}")
        _require(2 <= self.revisions <= MAX_KEPT, f"revisions must be between 2 and {MAX_KEPT}")
        _require(0 < self.grace_s <= MAX_WAIT_S, f"grace_s must be positive and at most {MAX_WAIT_S}")


@dataclass(frozen=True)
class RunSpec(_Rounded):
    """One training job. Its SHA-256 names it; nothing in it ever changes."""

    schema: int
    """Version of every record of this run."""
    run: str
    """Name of the run: lowercase letters, digits and dashes."""
    netuid: int
    owner: Hotkey
    """Hotkey that signs the genesis and operator commands."""
    validators: tuple[Hotkey, ...]
    """Hotkeys that may lead."""
    num_shards: int
    seed: int
    model: ModelSpec
    data: DataSpec
    inner: InnerSpec
    outer: OuterSpec
    codec: CodecSpec
    round: RoundSpec
    gates: GateSpec
    scoring: ScoringSpec
    restart: RestartSpec
    reduce: ReduceSpec
    retention: RetentionSpec

    def check(self) -> None:
        if self.schema != SCHEMA:
            raise ValueError(f"schema {self.schema} is not known to this version (it knows {SCHEMA}); update brigade")
        good = 1 <= len(self.run) <= 48 and all(c in "abcdefghijklmnopqrstuvwxyz0123456789-" for c in self.run)
        _require(good, "run must be 1 to 48 lowercase letters, digits and dashes")
        _require(self.num_shards <= MAX_SHARDS, f"num_shards must be at most {MAX_SHARDS}")
        _require(1 <= self.num_shards <= self.model.num_layers, "num_shards must be between 1 and num_layers")
        _require(len(self.validators) >= 1, "a run needs at least one validator")
        _require(self.data.seq_len <= self.model.max_seq_len, "seq_len is longer than the model's max_seq_len")

    def target_tokens(self, base_revision: Revision) -> int:
        """Tokens at which a round on ``base_revision`` closes: as much less as its steps are fewer than the last's."""
        return self._share(self.round.target_tokens, base_revision)

    def quorum_tokens(self, base_revision: Revision) -> int:
        """Fewest merged tokens for the commit of a round on ``base_revision``."""
        return self._share(self.round.quorum_tokens, base_revision)

    def _share(self, tokens: int, base_revision: Revision) -> int:
        return max(1, tokens * self.inner.steps_of(base_revision) // self.inner.steps_schedule[-1])


def encode_spec(spec: RunSpec) -> bytes:
    """The canonical bytes of a spec, as stored in ``runs/<run>/spec.json``."""
    return canonical.dumps(to_json(spec))


def decode_spec(data: bytes) -> RunSpec:
    """Read a spec from foreign bytes. Raises ``Rejected('bad_spec' | 'bad_json' | 'bad_float')``."""
    table = canonical.loads_object(data, MAX_SPEC_BYTES)
    if table.get("schema") != SCHEMA:
        raise Rejected("bad_spec", f"schema {str(table.get('schema'))[:20]} is unknown to this version; update brigade")
    return from_json(RunSpec, table, "bad_spec")


def spec_hash(spec: RunSpec) -> Sha256:
    """The hash that the owner commits on chain."""
    return sha256_hex(encode_spec(spec))


def describe_spec(spec: RunSpec) -> dict[str, Any]:
    """The spec with floats as numbers, for people."""
    return dataclasses.asdict(spec)
