"""What is simulated: the numbers of a simulation, and the run spec that follows from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from common import timeouts
from common.codec.container import encoded_size
from common.codec.params import delta_params, update_params
from common.defaults import (
    AUDITED_SHARE,
    BUTTERFLY,
    DEFAULT_PRESET,
    LEADER,
    REDUCE_KINDS,
    REDUNDANCY,
    Choices,
    make_spec,
    policy,
)
from common.errors import OperatorError
from common.model.layout import run_layouts
from common.model.presets import preset
from common.spec import MAX_PARTITIONS, ReduceSpec, RunSpec
from common.units import Hotkey, Revision, Sha256
from miner.deadlines import MOST_NOTICE_S
from validator.members import MAX_MEMBERS
from validator.simulator.scenario import KINDS, RATES, Fault
from validator.simulator.traces import Trace

NO_DATA = Sha256("0" * 64)
MAX_MINERS = 100_000
MAX_DIMENSION = 1 << 24
MAX_VALIDATORS = 64


@dataclass(frozen=True)
class Pace:
    """How fast machines for a preset are, unless somebody says otherwise."""

    tokens_per_s: float
    merge_s: float
    """What a leader needs to merge a round: reading, comparing, adding."""


PACES = {
    "nano": Pace(tokens_per_s=7_000.0, merge_s=1.0),
    "125m": Pace(tokens_per_s=100_000.0, merge_s=5.0),
    "1b": Pace(tokens_per_s=20_000.0, merge_s=30.0),
}
"""nano: a CPU core, measured. 125m and 1b: an A100 at 40 % of its bfloat16 peak, by 6 operations a parameter."""


@dataclass(frozen=True)
class Settings:
    """One simulation. Raises OperatorError for numbers of which none can be made."""

    miners: int = 8
    groups: int = 0
    """Coldkeys, and networks, that the miners share; 0: each has its own."""
    asns: int = 0
    """Autonomous systems that their networks belong to, in turns; 0: the leader has no table of them."""
    validators: int = 1
    """That may lead; with more than one they hold a lease and take over from each other."""
    rounds: int = 10
    """Rounds until the end, committed or aborted."""
    until_s: float = 0.0
    """Virtual time after which no further round is opened; 0: no such limit."""
    seed: int = 0
    faults: tuple[Fault, ...] = ()
    trace: Trace | None = None
    preset: str = DEFAULT_PRESET
    """Whose sizes travel and whose round policy holds."""
    dimension: int = 4096
    """Values of the vector that is trained in place of the model."""
    up_mbit: float = 100.0
    down_mbit: float = 500.0
    boot_s: float = 30.0
    """From a machine's start to its first request."""
    notice_s: float = 0.0
    """Warning before a machine of the trace goes."""
    tokens_per_s: float = 0.0
    """Speed of a machine; 0: the preset's."""
    speed_spread: float = 0.1
    """Standard deviation of the logarithm of the machines' speeds."""
    latency_s: float = 0.05
    """One way, between machine and leader."""
    storage_latency_s: float = 0.05
    storage_mbit: float = 1000.0
    """The most that the storage gives one transfer."""
    merge_s: float = -1.0
    """See ``Pace``; negative: the preset's."""
    look_s: float = 0.0
    """Pause between two looks of the leader; 0: the real one's, and longer with more miners than a subnet has."""
    steps: int = 0
    """Inner steps of a round for one miner; 0: the preset's."""
    drip_s: float = -1.0
    """Negative: the preset's."""
    density: int = 0
    """Of 4,096, in every round; 0: the preset's schedule."""
    overlap: bool = True
    reduce: str = LEADER
    """Who computes a round's mean: leader or butterfly."""
    partitions: int = 0
    """Of the butterfly; 0: the preset's."""
    block_s: float = 12.0
    """Between two blocks of the chain."""

    def __post_init__(self) -> None:
        preset(self.preset)
        _within("miners", self.miners, 1, MAX_MINERS)
        _within("groups", self.groups, 0, self.miners)
        _within("asns", self.asns, 0, self.miners)
        _within("validators", self.validators, 1, MAX_VALIDATORS)
        _within("rounds", self.rounds, 1, 1_000_000)
        _within("seed", self.seed, 0, 2**62)
        _within("dimension", self.dimension, 1, MAX_DIMENSION)
        for name in ("up_mbit", "down_mbit", "storage_mbit"):
            _within(name, getattr(self, name), 1e-3, 1e6)
        _within("until_s", self.until_s, 0, 1e10)
        _within("notice_s", self.notice_s, 0, MOST_NOTICE_S)
        for name in ("look_s", "boot_s", "latency_s", "storage_latency_s"):
            _within(name, getattr(self, name), 0, 1e6)
        _within("speed_spread", self.speed_spread, 0, 2)
        _within("tokens_per_s", self.tokens_per_s, 0, 1e12)
        _within("steps", self.steps, 0, 1_000_000)
        for name in ("drip_s", "merge_s"):  # below 0: the preset's
            _within(name, getattr(self, name), -1e6, 1e6)
        _within("density", self.density, 0, 4096)
        _within("block_s", self.block_s, 1e-3, 1e6)
        _within("partitions", self.partitions, 0, MAX_PARTITIONS)
        if self.reduce not in REDUCE_KINDS:
            raise OperatorError(f"--reduce {self.reduce}: choose {' or '.join(REDUCE_KINDS)}")
        if self.partitions and self.reduce != BUTTERFLY:
            raise OperatorError("--partitions is for --reduce butterfly")
        if self.trace is not None and not self.trace.counts.any():
            raise OperatorError("the trace has no machine at any time")
        for fault in self.faults:
            self._check_target(fault)

    def _check_target(self, fault: Fault) -> None:
        """A fault that meets nobody would look like one that was survived."""
        if fault.kind in RATES:
            raise OperatorError(f"{fault.kind} is a fault of rates: play it with --health")
        if self.validators == 1 and (KINDS[fault.kind].standbys or fault.target.kind == "leader"):
            raise OperatorError(f"{fault.kind} on {fault.target.kind}: that needs --validators 2 or more")
        name, number = fault.target.kind, fault.target.number
        count = {"miner": self.miners, "group": self.groups, "validator": self.validators}.get(name)
        if count is not None and number >= count:
            raise OperatorError(
                f"{fault.kind}: there is no {name}:{number:g}: they count from 0, and --{name}s is {count}"
            )

    @property
    def pace(self) -> Pace:
        """The preset's, with what was said otherwise."""
        usual = PACES[self.preset]
        return Pace(self.tokens_per_s or usual.tokens_per_s, usual.merge_s if self.merge_s < 0 else self.merge_s)

    @property
    def pause_s(self) -> float:
        """Between two looks of the leader."""
        return self.look_s or timeouts.LEADER_LOOK_S * max(1.0, self.miners / MAX_MEMBERS)

    @property
    def judge_s(self) -> float:
        """The part of a merge's time that comes before the plan."""
        return self.pace.merge_s / 2

    @property
    def reduce_s(self) -> float:
        """The part that comes after it."""
        return self.pace.merge_s / 2


def make_run(settings: Settings, owner: Hotkey, validators: Sequence[Hotkey]) -> RunSpec:
    """The preset's spec for so many miners."""
    choices = Choices(
        run="simulated",
        preset=settings.preset,
        seed=settings.seed,
        miners=settings.miners,
        steps=settings.steps or None,
        density=settings.density or None,
    )
    spec = make_spec(choices, 1, owner, validators, NO_DATA, "bytes")
    limits = replace(spec.round, overlap=settings.overlap)
    if settings.drip_s >= 0:
        limits = replace(limits, drip_s=settings.drip_s)
    if settings.reduce == BUTTERFLY:
        partitions = settings.partitions or policy(settings.preset).partitions
        reduce = ReduceSpec("butterfly", partitions, REDUNDANCY, partitions // AUDITED_SHARE)
        spec = replace(spec, reduce=reduce)
    return replace(spec, round=limits)


@dataclass(frozen=True)
class Sizes:
    """Bytes that travel: those of the preset's model, whatever the trained vector is."""

    spec: RunSpec
    values: int
    """Parameters of the real model."""
    dimension: int
    _deltas: dict[Revision, tuple[int, int]] = field(default_factory=dict)
    _updates: dict[Revision, int] = field(default_factory=dict)

    @classmethod
    def of(cls, spec: RunSpec, model: str, dimension: int) -> Sizes:
        return cls(spec, sum(layout.total for layout in run_layouts(preset(model), 1)), dimension)

    def delta(self, base: Revision) -> tuple[int, int]:
        """Of a delta on ``base``: the real one, and that of the trained vector."""
        known = self._deltas.get(base)
        if known is None:
            params = delta_params(self.spec.codec, base)
            known = encoded_size(self.values, params), encoded_size(self.dimension, params)
            self._deltas[base] = known
        return known

    def update(self, revision: Revision) -> int:
        """Of the update that made ``revision``."""
        known = self._updates.get(revision)
        if known is None:
            params = update_params(self.spec.codec, Revision(revision - 1))
            known = self._updates[revision] = encoded_size(self.values, params)
        return known

    @property
    def snapshot(self) -> int:
        """Of the weights, float32."""
        return 4 * self.values

    def to_head(self, held: Revision | None, head: Revision) -> int:
        """What leads from a revision to the head; from nothing: a snapshot and the updates since."""
        start = head - head % self.spec.round.snapshot_every if held is None else held
        updates = sum(self.update(Revision(number)) for number in range(start + 1, head + 1))
        if held is not None and updates > self.snapshot:
            return self.to_head(None, head)
        return updates + (self.snapshot if held is None else 0)


def _within(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise OperatorError(f"--{name.replace('_', '-')} must be between {least:g} and {most:g}, not {value:g}")
