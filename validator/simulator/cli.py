"""``brigade simulate``: a run in virtual time, with the real round core on simulated machines, links and storage.

Say how many miners, which faults (``--scenario``) and when machines are there (``--trace``); it tells goodput,
utilisation, survival, and what every lost token was lost to. The same seed gives the same result, bit for bit.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from common.errors import OperatorError
from common.units import format_bytes, format_duration
from validator.simulator.health.cli import DEFAULT_SEEDS, measured, parse_seeds
from validator.simulator.plot import check_plot, draw
from validator.simulator.run import Outcome, outcome, run
from validator.simulator.scenario import explain_kinds, read_scenario
from validator.simulator.settings import Settings
from validator.simulator.traces import read_trace
from validator.simulator.world import World

app = typer.Typer(help="Run Brigade in virtual time.", rich_markup_mode=None)

_SCENARIO_HELP = (
    "TOML file of faults: [[fault]] tables with kind, target (miner:N, group:N, share:0.25, miners, validator, "
    'storage), start (seconds or { round = 2, phase = "closing" }), duration (seconds), size. `--scenario help` '
    "lists the kinds."
)
_D = Settings()


@app.command()
def simulate(
    miners: Annotated[int, typer.Option(envvar="BRIGADE_MINERS", help="Machines.")] = _D.miners,
    groups: Annotated[
        int, typer.Option(envvar="BRIGADE_GROUPS", help="Coldkeys that they share; 0: each has its own.")
    ] = _D.groups,
    validators: Annotated[
        int, typer.Option(envvar="BRIGADE_SIMULATED_VALIDATORS", help="That may lead: one does, the others stand by.")
    ] = _D.validators,
    rounds: Annotated[
        int, typer.Option(envvar="BRIGADE_ROUNDS", help="Rounds, committed or aborted, until the end.")
    ] = _D.rounds,
    seed: Annotated[int, typer.Option(envvar="BRIGADE_SEED", help="Of everything that is random.")] = _D.seed,
    scenario: Annotated[Path | None, typer.Option(envvar="BRIGADE_SCENARIO", help=_SCENARIO_HELP)] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            envvar="BRIGADE_TRACE",
            help='JSON file of when machines are there: {"metadata": {"gap_seconds": g}, "data": [n at each tick]}.',
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", envvar="BRIGADE_JSON", help="Print JSON.")] = False,
    plot: Annotated[Path | None, typer.Option(envvar="BRIGADE_PLOT", help="PNG file to draw.")] = None,
    preset: Annotated[
        str, typer.Option(envvar="BRIGADE_PRESET", help="Model whose sizes travel, and whose rounds are played.")
    ] = _D.preset,
    dimension: Annotated[
        int, typer.Option(envvar="BRIGADE_DIMENSION", help="Values of the bowl that is trained in its place.")
    ] = _D.dimension,
    up_mbit: Annotated[float, typer.Option(envvar="BRIGADE_UP_MBIT", help="A machine's uplink.")] = _D.up_mbit,
    down_mbit: Annotated[float, typer.Option(envvar="BRIGADE_DOWN_MBIT", help="Its downlink.")] = _D.down_mbit,
    boot_s: Annotated[
        float, typer.Option(envvar="BRIGADE_BOOT_S", help="From a machine's start to its first request.")
    ] = _D.boot_s,
    notice_s: Annotated[
        float, typer.Option(envvar="BRIGADE_NOTICE_S", help="Warning before a machine of the trace goes; 0: none.")
    ] = _D.notice_s,
    tokens_per_s: Annotated[
        float, typer.Option(envvar="BRIGADE_TOKENS_PER_S", help="A machine's speed; 0: the preset's.")
    ] = _D.tokens_per_s,
    steps: Annotated[
        int, typer.Option(envvar="BRIGADE_STEPS", help="Inner steps of a round; 0: the preset's.")
    ] = _D.steps,
    drip_s: Annotated[
        float, typer.Option(envvar="BRIGADE_DRIP_S", help="Between two drips; 0: none, below 0: the preset's.")
    ] = _D.drip_s,
    density: Annotated[
        int, typer.Option(envvar="BRIGADE_DENSITY", help="Values sent of each 4,096; 0: the preset's schedule.")
    ] = _D.density,
    overlap: Annotated[
        bool, typer.Option(envvar="BRIGADE_OVERLAP", help="Train while rounds close and merge.")
    ] = _D.overlap,
    storage_mbit: Annotated[
        float, typer.Option(envvar="BRIGADE_STORAGE_MBIT", help="The most that the storage gives one transfer.")
    ] = _D.storage_mbit,
    merge_s: Annotated[
        float, typer.Option(envvar="BRIGADE_MERGE_S", help="What a merge takes the leader; below 0: the preset's.")
    ] = _D.merge_s,
    reduce: Annotated[
        str, typer.Option(envvar="BRIGADE_REDUCE", help="Who computes a round's mean: leader or butterfly.")
    ] = _D.reduce,
    partitions: Annotated[
        int, typer.Option(envvar="BRIGADE_PARTITIONS", help="Of the butterfly; 0: the preset's.")
    ] = _D.partitions,
    health: Annotated[
        bool,
        typer.Option(
            "--health",
            envvar="BRIGADE_HEALTH",
            help="Play rates, breaks and claims alone, many seeds of each fault of a table or of --scenario, and tell "
            "how soon and how rightly the health detectors find it; of rates beside a fixed timeout and a z-score.",
        ),
    ] = False,
    seeds: Annotated[
        str | None, typer.Option(envvar="BRIGADE_SEEDS", help="Of --health: A-B, both included; 0-49 if left out.")
    ] = None,
) -> None:
    """Run Brigade in virtual time: the real round core, membership, gates, merge and accounts on simulated machines."""
    if scenario is not None and str(scenario) == "help":
        print(explain_kinds())
        return
    faults = () if scenario is None else read_scenario(scenario)
    if seeds is not None and not health:
        raise OperatorError("--seeds is for --health; one simulation takes --seed")
    settings = Settings(
        miners=miners,
        groups=groups,
        validators=validators,
        rounds=rounds,
        seed=seed,
        faults=() if health else faults,
        trace=None if trace is None else read_trace(trace),
        preset=preset,
        dimension=dimension,
        up_mbit=up_mbit,
        down_mbit=down_mbit,
        boot_s=boot_s,
        notice_s=notice_s,
        tokens_per_s=tokens_per_s,
        steps=steps,
        drip_s=drip_s,
        density=density,
        overlap=overlap,
        storage_mbit=storage_mbit,
        merge_s=merge_s,
        reduce=reduce,
        partitions=partitions,
    )
    if health:
        if plot is not None or replace(settings, trace=None) != _D:
            raise OperatorError("--health plays rates alone: it takes --seeds, --scenario, --trace and --json only")
        print(measured(faults, settings.trace, parse_seeds(seeds or DEFAULT_SEEDS), as_json))
        return
    world = World(settings)
    if plot is not None:
        check_plot(plot)
    run(world)
    came = outcome(world)
    if plot is not None:
        draw(came, world.losses, plot)
    print(came.to_json() if as_json else told(came))


def told(came: Outcome) -> str:
    """The outcome for people."""
    figures = asdict(came)
    lines = [
        f"rounds       {came.rounds_committed} committed, {came.rounds_aborted} aborted in "
        f"{format_duration(came.seconds)} of virtual time",
        *(f"{name:<12} {figures[name]:.2%}" for name in ("goodput", "utilisation", "survival")),
        "lost to      " + ", ".join(f"{cause} {share:.2%}" for cause, share in came.lost_by_cause.items()),
        "phases       " + ", ".join(f"{name} {format_duration(s)}" for name, s in came.phase_seconds.items()),
        f"a miner      sent {format_bytes(came.bytes_up)}, received {format_bytes(came.bytes_down)}",
        f"loss         {came.loss_first:.4g} at first, {came.loss_last:.4g} at the end",
        *([f"means        {came.reduced_by_miners:.2%} of the partitions by miners"] if came.reduced_by_miners else []),
    ]
    return "\n".join(lines)
