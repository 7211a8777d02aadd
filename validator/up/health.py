"""``brigade health``: which miners are slower than they were, or break, since when, whose fault, and what is done."""

from __future__ import annotations

import json
from collections.abc import Iterator

import typer

from common.healthreport import FindingReport, HealthReport
from common.units import Hotkey, printable
from validator.care import DONE
from validator.health.claims import CLAIMS
from validator.health.findings import Blame, Finding, Stage
from validator.health.ladder import Rung, actions
from validator.run_place import DEFAULT_FOLDER
from validator.scoring.breakreports import BUSY, Trouble, troubles_in
from validator.scoring.healthreports import cases_in, findings_in, rung_of
from validator.up.asking import Directory, JsonLines, Url
from validator.up.findings import Known, known

app = typer.Typer(help="Which miners are slower than they were, and what is done.", rich_markup_mode=None)

STAGES = {CLAIMS: "told only", BUSY: "told only"}


@app.command()
def health(directory: Directory = DEFAULT_FOLDER, url: Url = None, json_lines: JsonLines = False) -> None:
    """Print all findings, by the leader or by the newest report in the bucket. Exit code 3 when neither is there."""
    found = known(directory, url)
    print(json.dumps(as_json(found)) if json_lines else "\n".join(lines(found)))


def as_json(found: Known) -> dict[str, object]:
    """For programs."""
    told: list[dict[str, object]] = [
        {
            "kind": finding.kind.value,
            "blame": finding.blame.value,
            "name": finding.name,
            "members": sorted(finding.members),
            "since": finding.since,
            "left": finding.left,
            "sigmas": finding.sigmas,
            "stage": finding.stage.value,
            "probed": finding.probed,
            "done": {hotkey: rung.name.lower() for hotkey, rung in sorted(rungs.items())},
        }
        for finding, rungs in _found(found.health)
    ]
    told += [_trouble_json(trouble) for trouble in troubles_in(found.health)]
    return {"run": found.run, "round": found.health.round, "by": found.by, "findings": told}


def lines(found: Known) -> list[str]:
    """For people."""
    followed = len(found.health.machines)
    head = f"run {printable(found.run)} after round {found.health.round}, by {printable(found.by)}"
    body = [line for finding, rungs in _found(found.health) for line in _told(found, finding, rungs)]
    body += [line for trouble in troubles_in(found.health) for line in _told_trouble(found, trouble)]
    return [head, *(body or [f"none of {followed} miners is slower than it usually is"])]


def doing(rung: Rung, names: list[str]) -> str:
    """What is done about these."""
    return f"{', '.join(names)}: {DONE[rung]}"


def way_back(health: HealthReport, hotkey: Hotkey) -> str:
    """How a machine under a verdict gets out of it; empty without one."""
    action = actions(cases_in(health, health.round)).get(hotkey)
    ways = [] if action is None else [action.way_back]
    ways += [trouble.way_back for trouble in troubles_in(health) if hotkey in trouble.members and trouble.way_back]
    return "; ".join(ways)


def headline(found: Known, trouble: Trouble) -> str:
    """What breaks, or is claimed, in one sentence."""
    whom = found.name(Hotkey(trouble.name))
    if trouble.name not in trouble.members:
        whom = f"{trouble.name} ({len(trouble.members)} machines)"
    return printable(f"{STAGES.get(trouble.kind, 'verdict')}: {whom} {trouble.text}")


def _found(health: HealthReport) -> Iterator[tuple[Finding, dict[Hotkey, Rung]]]:
    """Findings, verdicts first, each with what is done about its machines."""
    for told in sorted(health.findings, key=lambda told: told.stage != Stage.VERDICT):
        for finding in findings_in(HealthReport(round=health.round, findings=(told,), machines=())):
            yield finding, _rungs(told)


def _rungs(told: FindingReport) -> dict[Hotkey, Rung]:
    return {case.hotkey: rung_of(case) for case in told.cases}


def _told_trouble(found: Known, trouble: Trouble) -> Iterator[str]:
    yield headline(found, trouble)
    yield f"  {', '.join(found.name(hotkey) for hotkey in trouble.members)}: {trouble.done}"
    if trouble.way_back:
        yield f"  way back: {trouble.way_back}"


def _trouble_json(trouble: Trouble) -> dict[str, object]:
    return {
        "kind": trouble.kind,
        "blame": (Blame.NODE if trouble.name in trouble.members else Blame.GROUP).value,
        "name": trouble.name,
        "members": sorted(trouble.members),
        "since": trouble.since,
        "failed": trouble.failed,
        "made": trouble.made,
        "told": trouble.text,
        "done": {hotkey: trouble.rung.name.lower() for hotkey in sorted(trouble.members)},
    }


def _told(found: Known, finding: Finding, rungs: dict[Hotkey, Rung]) -> Iterator[str]:
    told = printable(str(finding))
    if finding.blame is Blame.NODE:
        hotkey = Hotkey(finding.name)
        told = told.replace(finding.name, found.name(hotkey))
    if finding.blame in (Blame.SELF, Blame.STORAGE):
        yield f"{told}: no miner is blamed in {finding.kind.value} meanwhile"
    elif finding.stage is Stage.WATCH:
        yield f"watched: {told}; a probe has to say the same before anything is done"
    else:
        yield f"verdict: {told}"
        for rung in sorted(set(rungs.values())):
            here = sorted(hotkey for hotkey in rungs if rungs[hotkey] is rung)
            yield f"  {doing(rung, [found.name(hotkey) for hotkey in here])}"
            yield f"  way back: {way_back(found.health, here[0])}"
