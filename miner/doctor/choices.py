"""What the doctor is told: the operator's choices, the outside world, and how long anything may take."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from common.chain.port import ChainPort
from common.clock import Clock
from miner.doctor.links import DownLimits
from miner.doctor.machine import FreeBytes, free_bytes
from miner.doctor.speed import SpeedLimits


@dataclass(frozen=True)
class Settings:
    """What the operator chose."""

    netuid: int | None
    """None for a look at the machine alone."""
    preset: str | None
    """Instead of a run."""
    wallets: Path
    wallet: str
    hotkey: str
    folder: Path
    """State of the miner that would be started."""
    cache: Path
    device: str
    threads: int
    allow_private: bool
    num_shards: int = 1
    """Of a preset's run."""


@dataclass(frozen=True)
class Limits:
    """Longest times, in seconds, and bytes."""

    look_s: float = 30.0
    """Of one look at chain, storage or validator."""
    down: DownLimits = field(default_factory=DownLimits)
    speed: SpeedLimits = field(default_factory=SpeedLimits)


@dataclass(frozen=True)
class Ports:
    """The outside world."""

    chain: ChainPort | None
    """None for a look at the machine alone."""
    clock: Clock
    free_bytes: FreeBytes = free_bytes
    limits: Limits = field(default_factory=Limits)
