"""A local chain in a process of its own, and benches: the same small world on each adapter of the chain port."""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common.chain.port import ChainPort
from common.chain.wallets import DevWallet, dev_wallet
from tests.support.memchain import MemoryWorld

BLOCK_TIME_S = 0.05
READY = "chain ready: "
REPOSITORY = Path(__file__).resolve().parents[2]
_names = itertools.count()


def cache_dir() -> Path:
    """Where the runtime metadata is kept between test runs."""
    return Path(os.environ.get("BRIGADE_CACHE") or REPOSITORY / ".cache")


class ChainProcess:
    """``brigade chain local`` on a free loopback port."""

    def __init__(self, folder: Path, block_time_s: float = BLOCK_TIME_S) -> None:
        self.folder = folder
        self.block_time_s = block_time_s
        self.port = 0
        self.url = ""
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start and wait until it listens; after the first time on the same port."""
        command = [sys.executable, "-m", "common.cli", "chain", "local", "--dir", str(self.folder)]
        command += ["--port", str(self.port), "--block-time", str(self.block_time_s), "--cache", str(cache_dir())]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.startswith(READY), line
        self.url = line.removeprefix(READY).strip()
        self.port = int(self.url.rpartition(":")[2])

    def kill(self) -> None:
        """End it as a crash would."""
        assert self._process is not None
        self._process.kill()
        self._end()

    def pause(self) -> None:
        """Stop it in the middle of whatever it does."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> int:
        """End it in order; returns its exit code."""
        assert self._process is not None
        self._process.terminate()
        return self._end()

    def _end(self) -> int:
        assert self._process is not None
        assert self._process.stdout is not None
        code = self._process.wait(timeout=60)
        self._process.stdout.close()
        return code


class Bench:
    """What a contract test needs: a sudo wallet, fresh wallets, and ports that sign with them."""

    def __init__(self, make_port: Callable[[DevWallet | None], ChainPort], sudo: DevWallet, seed: str) -> None:
        self._make_port = make_port
        self.sudo = sudo
        self._seed = seed
        self._ports: list[ChainPort] = []

    def port(self, wallet: DevWallet | None = None) -> ChainPort:
        """A new connection."""
        self._ports.append(self._make_port(wallet))
        return self._ports[-1]

    def wallet(self) -> DevWallet:
        """A coldkey and a hotkey that this chain hasn't seen."""
        return dev_wallet(f"//{self._seed}//{next(_names)}")

    async def funded(self, amount_tao: float = 20_000) -> DevWallet:
        """A fresh wallet with money."""
        wallet = self.wallet()
        await self.port(self.sudo).transfer(wallet.coldkey_ss58, amount_tao)
        return wallet

    async def subnet(self, **settings: Any) -> tuple[int, DevWallet]:
        """A started subnet with commit-reveal off and no rate limits, unless ``settings`` say otherwise."""
        owner = await self.funded()
        port = self.port(owner)
        netuid = await port.register_subnet()
        await port.start_subnet(netuid)
        defaults = {"tempo": 5, "commit_reveal": False, "weights_rate_limit_blocks": 0, "serving_rate_limit_blocks": 0}
        await self.port(self.sudo).set_hyperparameters(netuid, **{**defaults, **settings})
        return netuid, owner

    async def validator(self, netuid: int, owner: DevWallet) -> ChainPort:
        """The owner with stake, behind an epoch that gave it a permit."""
        port = self.port(owner)
        await port.add_stake(netuid, owner.hotkey_ss58, 100)
        await port.wait_for_block(await port.next_epoch_block(netuid), timeout_s=120)
        return port

    async def close(self) -> None:
        """Close all connections of this test."""
        for port in self._ports:
            await port.close()
        self._ports.clear()


def async_test(test: Callable[..., Any]) -> Callable[..., None]:
    """Run an async test in a loop of its own; a ``bench`` is closed in it."""

    @functools.wraps(test)
    def wrapper(**fixtures: Any) -> None:
        async def main() -> None:
            try:
                await test(**fixtures)
            finally:
                if "bench" in fixtures:
                    await fixtures["bench"].close()

        asyncio.run(main())

    return wrapper


def memory_bench() -> Bench:
    """A bench in memory."""
    sudo = dev_wallet("//Alice")
    world = MemoryWorld(sudo.coldkey_ss58)
    return Bench(world.port, sudo, "memory")


def sdk_bench(url: str) -> Bench:
    """A bench on a node."""
    from common.chain.sdk import SdkChain

    return Bench(lambda wallet: SdkChain(url, wallet, timeout_s=120), dev_wallet("//Alice"), "sdk")
