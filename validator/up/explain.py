"""``brigade explain``: what is known of one miner's rates and breaks, what is held against it, and the way back."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Annotated

import typer

from common.errors import OperatorError
from common.healthreport import MachineReport, RateReport
from common.units import Hotkey, format_bytes, printable
from validator.health.breaks import Break
from validator.health.claims import CLAIMS
from validator.health.evidence import Kind
from validator.health.findings import Blame, Finding
from validator.health.past import LAG, LEAST
from validator.run_place import DEFAULT_FOLDER
from validator.scoring.breakreports import BUSY, troubles_in
from validator.scoring.healthreports import findings_in, rate_of, rung_of
from validator.up.asking import Directory, JsonLines, Url
from validator.up.findings import Known, known
from validator.up.health import as_json, doing, headline, way_back

app = typer.Typer(help="What is known of one miner's rates, and the way back.", rich_markup_mode=None)
WHAT = {Kind.COMPUTE: "training", Kind.UPLINK: "uploads", Kind.DOWNLINK: "downloads"}
WHY: Mapping[str, str] = {
    Break.FLAP: "its process goes on while its heartbeats stop: look at its connection; it costs no strike and no pay",
    Break.TRUNCATE: "what it sends does not come whole: look at its connection; it costs no strike and no pay",
    Break.UNREACHABLE: "it is heard, and does not do what it is told: look at its log; nothing else follows from that",
    CLAIMS: "nothing rests on what it says of itself: duties, weights and pay are by what it shows",
    BUSY: "nothing follows from that: its own uploads and reads show its link",
}


@app.command()
def explain(
    miner: Annotated[str, typer.Argument(help="Hotkey (SS58) of a miner, or its name in the folder's wallets.")],
    directory: Directory = DEFAULT_FOLDER,
    url: Url = None,
    json_lines: JsonLines = False,
) -> None:
    """Print what is known of one miner. Exit code 2 when nothing is known of it, 3 as `brigade health`."""
    found = known(directory, url)
    machine = _machine(found, miner)
    if json_lines:
        print(json.dumps(_as_json(found, machine)))
        return
    print("\n".join(lines(found, machine)))


def lines(found: Known, machine: MachineReport) -> list[str]:
    """For people."""
    head = f"{found.name(machine.hotkey)} ({machine.hotkey}) after round {found.health.round}, by {printable(found.by)}"
    rates = [f"  {WHAT[kind]}: {_rate(kind, rate_of(machine, kind))}" for kind in Kind]
    held = [line for finding in _of(found, machine.hotkey) for line in _held(finding)]
    troubles = [trouble for trouble in troubles_in(found.health) if machine.hotkey in trouble.members]
    held += [line for trouble in troubles for line in (headline(found, trouble), f"  {WHY[trouble.kind]}")]
    return [head, *rates, *(held or ["nothing is held against it"]), *_done(found, machine.hotkey)]


def _machine(found: Known, miner: str) -> MachineReport:
    hotkeys = {name: hotkey for hotkey, name in found.names.items()}
    wanted = hotkeys.get(miner, miner)
    machine = next((one for one in found.health.machines if one.hotkey == wanted), None)
    if machine is None and any(wanted in trouble.members for trouble in troubles_in(found.health)):
        machine = MachineReport(hotkey=Hotkey(wanted))
    if machine is None:
        raise OperatorError(f"nothing is known of {miner} after round {found.health.round}, by {found.by}")
    return machine


def _of(found: Known, hotkey: Hotkey) -> list[Finding]:
    return [finding for finding in findings_in(found.health) if hotkey in finding.members]


def _rate(kind: Kind, rate: RateReport | None) -> str:
    if rate is None:
        return "nothing was seen yet"
    newest = "" if rate.newest is None else f"{_amount(kind, rate.newest)} in its newest round"
    if rate.usual is None:
        few = f"{rate.seen} of the {LEAST + LAG} rounds are known before which nobody is blamed"
        return f"{newest}; {few}" if newest else few
    usual = f"{_amount(kind, rate.usual)} usually, give or take {rate.spread:.0%} ({rate.seen} rounds)"
    if rate.newest is None:
        return usual
    return f"{newest}, {math.exp(min(10.0, rate.newest - rate.usual)):.0%} of {usual}"


def _amount(kind: Kind, log_rate: float) -> str:
    rate = math.exp(min(50.0, log_rate))
    return f"{rate:,.0f} tokens/s" if kind is Kind.COMPUTE else f"{format_bytes(rate)}/s"


def _held(finding: Finding) -> Iterator[str]:
    yield f"{finding.stage.value}: {printable(str(finding))}"
    if finding.blame is Blame.GROUP and finding.observed:
        yield "  that is its group's fault: it costs no strike, only what is not done meanwhile"
    elif finding.blame is Blame.NODE:
        yield "  the others of its groups did not fall with it, so it is the machine's own"


def _done(found: Known, hotkey: Hotkey) -> Iterator[str]:
    cases = [case for told in found.health.findings for case in told.cases if case.hotkey == hotkey]
    if cases:
        yield f"done: {doing(max(rung_of(case) for case in cases), [found.name(hotkey)])}"
    if back := way_back(found.health, hotkey):
        yield f"way back: {back}"


def _as_json(found: Known, machine: MachineReport) -> dict[str, object]:
    every = as_json(found)
    findings = every["findings"]
    assert isinstance(findings, list)
    rates = {kind.value: rate_of(machine, kind) for kind in Kind}
    return {
        **every,
        "hotkey": machine.hotkey,
        "rates": {kind: None if rate is None else vars(rate) for kind, rate in rates.items()},
        "findings": [one for one in findings if machine.hotkey in one["members"]],
        "way_back": way_back(found.health, machine.hotkey),
    }
