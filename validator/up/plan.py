"""What ``brigade up`` starts, and with which arguments. Pure.

Every process is a ``brigade`` command that an operator could start alone; nothing is told in another way than by its
flags, but for the number of threads and the places of logs and of the SDK's files, which are environment.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from common import defaults
from common.errors import OperatorError
from common.model.device import check_device
from common.timeouts import CHAIN_CALL_S, ROLE_STOP_S
from validator.up.folder import RUN_NAME, Folder
from validator.up.supervisor import ChildSpec

LOOPBACK = "127.0.0.1"
SERVED_IP = "127.0.0.2"  # the chain refuses to publish 127.0.0.1
SERVERS = {"chain": LOOPBACK, "validator": SERVED_IP}
"""Servers whose ports ``up`` chooses, and the address each listens on."""
BRIGADE = (sys.executable, "-P", "-m", "common.cli")  # -P: a folder called common where we are started is not ours
# Children end in falling order: miners say good-bye to the validator, that one to chain and storage.
MINER_ORDER, VALIDATOR_ORDER, SERVER_ORDER = 3, 2, 1
MAX_MINERS = 200
LEAST_BLOCK_TIME_S = 0.01
MOST_BLOCK_TIME_S = CHAIN_CALL_S / 2
"""A call that just missed a block waits for the next one, and must be over by then."""


@dataclass(frozen=True)
class Settings:
    """The flags of ``brigade up``, checked."""

    folder: Folder
    miners: int
    rounds: int | None
    """Commits to make; None: until it is stopped."""
    preset: str
    seed: int
    device: str
    threads: int | None
    density: int | None
    steps: int | None
    block_time_s: float
    data: Path | None
    json_lines: bool
    config: Path | None = None
    """The settings file, which children read too."""
    log_dir: Path | None = None
    """Where all logs go; None: into the folder."""
    reduce: str = defaults.LEADER
    """Who adds the deltas up."""

    def __post_init__(self) -> None:
        if not 1 <= self.miners <= MAX_MINERS:
            raise OperatorError(f"--miners must be between 1 and {MAX_MINERS}")
        if self.rounds is not None and self.rounds < 1:
            raise OperatorError("--rounds must be at least 1; leave it out to train until Ctrl-C")
        check_device(self.device)
        if not LEAST_BLOCK_TIME_S <= self.block_time_s <= MOST_BLOCK_TIME_S:  # NaN, too
            raise OperatorError(
                f"--block-time {self.block_time_s:g}: choose {LEAST_BLOCK_TIME_S:g} to {MOST_BLOCK_TIME_S:g} seconds, "
                f"since one call to the chain may take {CHAIN_CALL_S:g} s and waits for up to two blocks"
            )
        if self.data is not None and not self.data.exists():
            raise OperatorError(f"--data {self.data} does not exist: name a text file or a folder of text files")
        defaults.check(self.choices(self.miners))

    def choices(self, target_miners: int) -> defaults.Choices:
        """What the run's spec is made from."""
        return defaults.Choices(
            RUN_NAME,
            self.preset,
            self.seed,
            target_miners,
            density=self.density,
            steps=self.steps,
            reduce=self.reduce,
        )

    @property
    def logs(self) -> Path:
        """Folder of the logs of all processes."""
        return self.log_dir or self.folder.logs

    def threads_each(self, cores: int) -> int:
        """Threads of one process."""
        return self.threads if self.threads is not None else max(1, cores // self.miners)


@dataclass(frozen=True)
class Place:
    """Where the run is on chain and on the loopback, once that is known."""

    netuid: int
    ports: Mapping[str, int]

    @property
    def chain_url(self) -> str:
        return chain_url(self.ports)

    @property
    def validator_url(self) -> str:
        return f"http://{SERVED_IP}:{self.ports['validator']}"


def chain_url(ports: Mapping[str, int]) -> str:
    """The local chain's address."""
    return f"ws://{LOOPBACK}:{ports['chain']}"


def servers(settings: Settings, ports: Mapping[str, int]) -> list[ChildSpec]:
    """Storage and chain: what everything else needs."""
    folder = settings.folder
    storage = ("storage", "serve", "--dir", str(folder.storage))
    chain: tuple[str, ...] = ("chain", "local", "--dir", str(folder.chain), "--cache", str(folder.cache))
    chain += ("--port", str(ports["chain"]), "--block-time", repr(settings.block_time_s))
    return [
        _child(settings, "storage", storage, SERVER_ORDER),
        _child(settings, "chain", chain, SERVER_ORDER),
    ]


def validator(settings: Settings, place: Place, until_revision: int | None, threads: int) -> ChildSpec:
    """The validator: leads, merges, scores, sets weights."""
    folder = settings.folder
    flags = ("validator", "start", *_identity(settings, place, "validator"), "--dir", str(folder.root))
    flags += ("--storage", str(folder.storage_config), "--host", SERVED_IP, "--port", str(place.ports["validator"]))
    flags += ("--cache", str(folder.cache), "--threads", str(threads))
    if until_revision is not None:
        flags += ("--until-revision", str(until_revision))
    return _child(settings, "validator", flags, VALIDATOR_ORDER, threads)


def miner(settings: Settings, place: Place, name: str, threads: int) -> ChildSpec:
    """One miner."""
    folder = settings.folder
    flags = ("miner", "start", *_identity(settings, place, name), "--dir", str(folder.root))
    flags += ("--cache", str(folder.cache), "--device", settings.device, "--threads", str(threads))
    flags += ("--allow-private", "--notice-s", f"{ROLE_STOP_S:g}")
    return _child(settings, name, flags, MINER_ORDER, threads)


def miner_names(count: int) -> list[str]:
    """miner-1 … miner-N."""
    return [f"miner-{number}" for number in range(1, count + 1)]


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0))


def _identity(settings: Settings, place: Place, wallet: str) -> tuple[str, ...]:
    flags = ("--chain", place.chain_url, "--netuid", str(place.netuid))
    return (*flags, "--wallet-path", str(settings.folder.wallets), "--wallet", wallet)


def _child(settings: Settings, name: str, flags: tuple[str, ...], order: int, threads: int = 1) -> ChildSpec:
    root: tuple[str, ...] = ("--log-dir", str(settings.logs))
    if settings.config is not None:
        root += ("--config", str(settings.config))
    environment = {variable: str(threads) for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    return ChildSpec(name, (*BRIGADE, *root, *flags), environment, order)
