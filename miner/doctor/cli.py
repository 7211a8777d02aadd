"""``brigade doctor``: whether this machine would keep up with a run, before you pay for it.

Exit code 0: it would keep up; 1: it would not; 2: usage; 3: the environment is broken, as a line says. Nothing is
registered, paid for or uploaded, and nothing stays behind.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from common import options
from common.clock import SystemClock
from common.errors import OperatorError
from common.model.device import check_device
from common.model.presets import PRESETS, preset

if TYPE_CHECKING:
    from miner.doctor.choices import Limits, Settings
    from miner.doctor.facts import Facts

app = typer.Typer(help="Whether this machine would keep up with a run.", rich_markup_mode=None)
DEFAULT_HOTKEY = "default"
DEFAULT_MEASURE_S, MOST_MEASURE_S = 12.0, 600.0


@app.command()
def doctor(
    netuid: Annotated[
        int | None, typer.Option(envvar="BRIGADE_NETUID", min=0, help="Number of the subnet whose run is looked at.")
    ] = None,
    preset_name: Annotated[
        str | None,
        typer.Option("--preset", envvar="BRIGADE_PRESET", help=f"Instead of a run, and offline: {', '.join(PRESETS)}."),
    ] = None,
    wallet: options.WalletName = "miner-1",
    hotkey: options.HotkeyName = DEFAULT_HOTKEY,
    wallet_path: options.WalletPath = None,
    chain: options.Chain = options.DEFAULT_CHAIN,
    directory: Annotated[
        Path, typer.Option("--dir", envvar="BRIGADE_DIR", help="Folder that `brigade miner start` would be given.")
    ] = Path("brigade-run"),
    cache: Annotated[
        Path | None, typer.Option(envvar="BRIGADE_CACHE", help="Its folder of datasets; DIR/cache if not given.")
    ] = None,
    device: Annotated[
        str, typer.Option(envvar="BRIGADE_DEVICE", help="auto (a GPU if there is one), cpu, cuda or cuda:<number>.")
    ] = "auto",
    threads: options.Threads = None,
    measure_s: Annotated[
        float, typer.Option("--measure-s", envvar="BRIGADE_MEASURE_S", help="Seconds to measure the training for.")
    ] = DEFAULT_MEASURE_S,
    allow_private: Annotated[
        bool,
        typer.Option(
            "--allow-private",
            envvar="BRIGADE_ALLOW_PRIVATE",
            help="Call validators and storage at private addresses, too.",
        ),
    ] = False,
    json_report: Annotated[bool, typer.Option("--json", envvar="BRIGADE_JSON", help="Print JSON.")] = False,
) -> int:
    """Look at machine, wallet, run and links, and say whether the machine would keep up, with how many tokens a round.

    Give --netuid (and --chain, --wallet …, as to `brigade miner start`) for a run, or --preset for the machine alone.
    Exit code 0: it would keep up; 1: it would not; 3: the environment is broken.
    """
    if (netuid is None) == (preset_name is None):
        raise OperatorError(
            "give --netuid (or BRIGADE_NETUID) for a run, or --preset for a look at the machine alone, and not both"
        )
    if preset_name is not None:
        preset(preset_name)
    check_device(device)
    if not 0 < measure_s <= MOST_MEASURE_S:
        raise OperatorError(f"--measure-s must be above 0 and at most {MOST_MEASURE_S:g} seconds, not {measure_s:g}")
    from miner.doctor.choices import Limits, Settings  # PyTorch: seconds that --help and wrong flags need not wait for
    from miner.doctor.speed import SpeedLimits
    from miner.doctor.verdict import judge

    folder = directory.absolute()
    settings = Settings(
        netuid=netuid,
        preset=preset_name,
        wallets=wallet_path or folder / "wallets",
        wallet=wallet,
        hotkey=hotkey,
        folder=folder,
        cache=cache or folder / "cache",
        device=device,
        threads=threads or os.cpu_count() or 1,
        allow_private=allow_private,
    )
    limits = Limits(speed=SpeedLimits(budget_s=measure_s))
    facts = asyncio.run(_examine(settings, limits, chain))
    report = judge(facts)
    if json_report:
        print(json.dumps(report.to_json(facts)))
    else:
        print("\n".join(str(line) for line in report.lines))
    return report.exit_code


async def _examine(settings: Settings, limits: Limits, chain_url: str) -> Facts:
    from miner.doctor.choices import Ports
    from miner.doctor.look import examine

    if settings.netuid is None:
        return await examine(settings, Ports(None, SystemClock(), limits=limits))
    from common.chain.sdk import SdkChain, isolate_sdk

    with tempfile.TemporaryDirectory(prefix="brigade-doctor-") as folder:
        isolate_sdk(Path(folder))
        chain = SdkChain(chain_url)
        try:
            return await examine(settings, Ports(chain, SystemClock(), limits=limits))
        finally:
            await chain.close()
