"""``brigade run``: look at a run, read its log, prove it, export its weights, resume it after a pause."""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from common import options, timeouts
from common.errors import OperatorError, Retryable
from common.model.export import check_folder, export_hf
from common.runlog.materialise import materialise, materialise_newest
from common.runlog.reader import LogReader
from common.runlog.state import RunState
from common.runlog.story import HEADING, as_json, tell
from common.runlog.verify import VerifyReport, verify_run
from common.spec import describe_spec, spec_hash
from common.units import Revision
from validator.audits.told import proved_from_file, told_again
from validator.run_create import create
from validator.run_gc import gc
from validator.run_heads import ask_chain, chain_of, told
from validator.run_leaders import leaders
from validator.run_move import move
from validator.run_orders import abort_round, pause, resume, rollback
from validator.run_place import Asked, Place, find

app = typer.Typer(no_args_is_help=True, help="Create a run, read its log, prove it, export its weights, resume it.")
app.command()(create)

Folder = Annotated[
    Path | None, typer.Option("--dir", envvar="BRIGADE_DIR", help="Folder of `brigade up`; default ./brigade-run.")
]
Run = Annotated[str | None, typer.Option("--run", envvar="BRIGADE_RUN", help="Name of the run; --dir knows its own.")]
SpecHash = Annotated[
    str | None,
    typer.Option("--spec-sha256", envvar="BRIGADE_SPEC_SHA256", help="What the spec must hash to, as on chain."),
]
AsJson = Annotated[bool, typer.Option("--json", envvar="BRIGADE_JSON", help="For programs.")]

WHERE = (
    ("folder", Folder, None),
    ("run", Run, None),
    ("endpoint", options.Endpoint, None),
    ("bucket", options.Bucket, None),
    ("prefix", options.Prefix, ""),
    ("region", options.Region, options.DEFAULT_REGION),
    ("access_key", options.AccessKey, None),
    ("secret_key", options.SecretKey, None),
    ("spec_sha256", SpecHash, None),
)
"""The options that make an ``Asked``: name, annotation, default."""


def command(body: Callable[..., None]) -> Callable[..., None]:
    """Register ``body``, whose first parameter is an ``Asked``, as a command that takes the options of ``WHERE``."""
    own = list(inspect.signature(body, eval_str=True).parameters.values())[1:]
    where = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, kind, default in WHERE
    ]

    def run(**values: Any) -> None:
        body(Asked(**{name: values.pop(name) for name, _, _ in WHERE}), **values)

    parameters = [*where, *(one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own)]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what typer reads
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    run.__name__, run.__doc__ = body.__name__, body.__doc__
    app.command()(run)
    return body


@command
def show(
    asked: Asked,
    as_json_: AsJson = False,
) -> None:
    """Print the run's spec."""
    place = find(asked)
    spec = place.spec()
    if as_json_:
        typer.echo(json.dumps({"spec_sha256": spec_hash(spec), "spec": describe_spec(spec)}))
        return
    typer.echo(f"spec {spec_hash(spec)}")
    for line in _outline(describe_spec(spec)):
        typer.echo(line)


@command
def log(
    asked: Asked,
    as_json_: AsJson = False,
    follow: Annotated[bool, typer.Option("--follow", help="Go on with what is written from now on.")] = False,
) -> None:
    """Tell the run's story: every entry of its log, who wrote it, why, and what it cost."""
    place = find(asked)
    reader = place.log()
    if not as_json_:
        typer.echo(HEADING)
    state = tell_new(reader, None, typer.echo, as_json_)
    while follow:
        time.sleep(timeouts.WAIT_POLL_S)
        try:
            state = tell_new(reader, state, typer.echo, as_json_)
        except Retryable as fault:
            typer.echo(f"waiting for the storage: {fault}", err=True)


@command
def verify(
    asked: Asked,
    chain: Annotated[
        str | None,
        typer.Option(envvar="BRIGADE_CHAIN", help="Compare with the heads on this chain; a running --dir knows its."),
    ] = None,
    netuid: Annotated[int | None, typer.Option(envvar="BRIGADE_NETUID", min=0, help="Number of the subnet.")] = None,
    conviction: Annotated[
        Path | None,
        typer.Option(envvar="BRIGADE_CONVICTION", help="Check only what a validator holds against a leader, a file."),
    ] = None,
) -> None:
    """Prove everything in the run's bucket; exit 1 at the first wrong thing, naming it."""
    place, heads = find(asked), None
    if conviction is not None:
        typer.echo(proved_from_file(place, conviction))
        return
    where = chain_of(asked, chain, netuid)
    if where is not None:
        heads, place = ask_chain(where, place)
    if place.spec_sha256 is None:
        typer.echo("the spec's hash on chain is not known here (--spec-sha256): the genesis has to vouch for it")
    report = verify_run(place.listing_store(), place.run, place.spec_sha256, typer.echo, heads, place.at)
    for line in told_again(place, report.convictions, report.unheard):
        typer.echo(line)
    for line in summary(report):
        typer.echo(line)


@command
def export(
    asked: Asked,
    out: Annotated[
        Path, typer.Option(envvar="BRIGADE_OUT", help="Folder to write model.safetensors and config.json into.")
    ],
    revision: Annotated[
        int | None, typer.Option(envvar="BRIGADE_REVISION", min=0, help="By default the newest that is whole.")
    ] = None,
) -> None:
    """Write a revision as a folder that `transformers` loads as a Llama model."""
    check_folder(out)
    place = find(asked)
    export_revision(place, out, revision)


for order in (pause, resume, rollback, abort_round):
    command(order)
command(leaders)
command(gc)
command(move)


def tell_new(
    reader: LogReader, state: RunState | None, echo: Callable[[str], Any], for_programs: bool
) -> RunState | None:
    """Print a line for each slot after ``state``; the state after them."""
    for step in reader.steps(state):
        echo(json.dumps(as_json(step)) if for_programs else tell(step, state).text())
        state = step.state
    return state


def export_revision(place: Place, out: Path, revision: int | None) -> None:
    """Materialise and write: the revision asked for, or the newest one whose objects are all there.

    Raises OperatorError for a revision that the log does not know.
    """
    spec = place.spec()
    state = LogReader(place.reader, spec).catch_up()
    if revision is not None and revision not in state.revisions:
        raise OperatorError(f"--revision {revision}: the run has revisions 0 to {state.next_revision - 1}")
    wanted = None if revision is None else Revision(revision)
    built = materialise_newest(place.reader, state) if wanted is None else materialise(place.reader, state, wanted)
    for note in built.notes:
        typer.echo(note, err=True)
    export_hf(spec.model, [shard.weights for shard in built.shards], out)
    typer.echo(f"revision {built.revision} ({state.revisions[built.revision].sha256}) is in {out}")


def summary(report: VerifyReport) -> list[str]:
    """What a verification found right, in lines."""
    counts = ", ".join(f"{count} {kind}" for kind, count in sorted(report.objects.items()))
    lines = [f"checked {sum(report.objects.values())} objects: {counts}"]
    if report.voids:
        stale = ", ".join(f"{count} {code}" for code, count in sorted(report.voids.items()))
        lines.append(f"stale entries, passed over by every reader: {stale}")
    lines += [f"rejected and not in the bucket: {key}" for key in report.absent]
    if report.replaced:
        lines.append(f"replaced by newer ones of the same miner and round: {report.replaced} submissions")
    lines += [f"refused, its bytes are not those of its name: {key}" for key in report.refused]
    for key in report.unreferenced:
        why = report.suspicious.get(key)
        lines.append(f"suspicious, nothing refers to: {key}: {why}" if why else f"nothing refers to: {key}")
    lines += [f"revision {at} holds a lie of {lie.hotkey}: {lie.told}" for at, lie in report.wrong_means]
    if report.state.floor:
        lines.append(
            f"deleted by retention: {report.deleted} objects; the oldest revision kept is {report.state.floor}, "
            "and what came before it is proved by the log alone"
        )
    if report.unreported:
        lines.append(f"no report for rounds {', '.join(map(str, report.unreported))}")
    if not report.lease:
        lines.append("no lease: nobody has led this run from this bucket, or the lease was taken away")
    if report.state.moved is not None:
        lines.append(f"the log says that the run lives in {report.state.moved.target.base_url}")
    lines.append(told(report.tail, report.state.next_seq - 1))
    head = report.state.head_node
    return [*lines, f"run {report.state.run} is whole: head is revision {head.revision}, {head.sha256}"]


def _outline(table: dict[str, Any], indent: str = "") -> list[str]:
    lines: list[str] = []
    for name, value in table.items():
        if isinstance(value, dict):
            lines += [f"{indent}{name}", *_outline(value, indent + "  ")]
        else:
            lines.append(f"{indent}{name:<24} {_value(value)}")
    return lines


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return ", ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
