"""What the doctor found out about a machine and the run that it would serve. Frozen facts, no judgement.

Where something could not be found out there is a ``Trouble`` in its place, or None where nobody asked.
"""

from __future__ import annotations

from dataclasses import dataclass

from common.spec import RunSpec
from common.units import Hotkey, Revision, Uid


@dataclass(frozen=True)
class Trouble:
    """Why something is not known, or not as it must be, and what the operator can do."""

    text: str
    do: str = ""


@dataclass(frozen=True)
class Machine:
    """Where the training would run."""

    device: str
    """cpu or cuda:<number>."""
    title: str
    """Its maker's name for it."""
    threads: int
    host_free_bytes: int
    """Memory that a new process can take."""
    device_free_bytes: int | None = None
    """The same of a GPU's own; None without one."""
    device_total_bytes: int | None = None

    @property
    def on_gpu(self) -> bool:
        return self.device_free_bytes is not None


@dataclass(frozen=True)
class Room:
    """A folder that the miner writes into, which need not exist yet."""

    purpose: str
    """state or cache."""
    folder: str
    disk: int
    """Folders of one number share their room."""
    free_bytes: int
    writable: bool
    held_bytes: int = 0
    """Of what belongs there already."""


@dataclass(frozen=True)
class ClockReading:
    """This machine's clock beside another one."""

    source: str
    ahead_s: float
    """Ours minus theirs."""
    grain_s: float
    """A difference up to this says nothing."""


@dataclass(frozen=True)
class Head:
    """How far the run's log has come."""

    revision: Revision
    leader: Hotkey | None
    round_s: float | None
    """Median time from commit to commit of the last rounds; None before the second commit."""
    paused: str
    """Why no round is opened; empty while they are."""
    whole: bool
    """Whether the log was read to its end in the time that there was."""


@dataclass(frozen=True)
class ValidatorSeen:
    """One validator as this machine reaches it."""

    hotkey: Hotkey
    leads: bool
    url: str
    trouble: Trouble | None = None
    """None when its signed answer fits the run."""


@dataclass(frozen=True)
class Link:
    """What a real transfer came to."""

    rate_bps: float
    size_bytes: int
    seconds: float
    at_least: bool = False
    """The object was too small to tell more than a lower bound."""


@dataclass(frozen=True)
class Speed:
    """Inner steps of the run's model, really taken."""

    tokens_per_s: float
    steps: int
    step_tokens: int
    whole_batch: bool
    """Whether a step had as many tokens as the spec says; smaller steps are slower by the token."""
    encode_s: float
    """To compress one delta."""
    peak_bytes: int | None
    """Most memory that the steps took on the device; None where they were not whole, or it can't be told."""


@dataclass(frozen=True)
class Remote:
    """What there is outside of this machine."""

    wallet: Hotkey | Trouble
    chain: int | Trouble
    """Its newest block."""
    seat: Uid | Trouble | None = None
    run: str | Trouble | None = None
    """Where the run's objects are."""
    head: Head | Trouble | None = None
    validators: tuple[ValidatorSeen, ...] = ()
    clocks: tuple[ClockReading, ...] = ()
    downlink: Link | Trouble | None = None
    uplink: Link | None = None


@dataclass(frozen=True)
class Facts:
    """All of it."""

    machine: Machine | Trouble
    rooms: tuple[Room, ...]
    spec: RunSpec | None
    """Of the run, or of a preset; None where no run was found."""
    remote: Remote | None
    """None for a look at the machine alone."""
    dataset_bytes: int | None = None
    """Size of the run's dataset."""
    speed: Speed | Trouble | None = None
