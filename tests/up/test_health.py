"""``brigade health`` and ``brigade explain``: what a person reads of slow miners, and what a program."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace

import pytest

from common.cli import run as brigade
from common.healthreport import HealthReport
from common.typed import to_json
from common.units import Hotkey, RoundId
from common.wire import Findings
from tests.support.httpserver import Reply, Request, ScriptedServer
from tests.support.specs import VALIDATOR
from validator.care import Care, with_breaks
from validator.health.breaks import Break, restored
from validator.health.claims import Claim
from validator.health.evidence import Kind, Level
from validator.health.findings import Blame, Finding, Stage
from validator.health.ladder import Rung
from validator.health.monitor import Case, Monitor
from validator.health.past import Past
from validator.scoring.breakreports import findings_of
from validator.scoring.healthreports import health_report

A, B, C, D, NEW = (Hotkey(letter * 48) for letter in "abcdn")
HALF = math.log(0.5)
GROUP = Finding(
    Kind.UPLINK, Blame.GROUP, frozenset({A, B}), "subnet 10.3.0.0/24", True, RoundId(7), HALF, 6.2, Stage.VERDICT, True
)
NODE = Finding(Kind.COMPUTE, Blame.NODE, frozenset({C}), C, True, RoundId(5), HALF, 9.0, Stage.VERDICT)
WATCH = Finding(Kind.DOWNLINK, Blame.NODE, frozenset({D}), D, True, RoundId(8), HALF, 5.0, Stage.WATCH)
STORAGE = Finding(Kind.UPLINK, Blame.STORAGE, frozenset(), "the storage", True, RoundId(8), HALF, 0.0, Stage.VERDICT)


def told() -> HealthReport:
    monitor = Monitor()
    cases = {(f.kind, h): Case(f, RoundId(8), RoundId(9)) for f in (GROUP, NODE) for h in f.members}
    pasts = {(kind, h): Past(math.log(2048.0), 0.25, 20) for kind in (Kind.COMPUTE, Kind.UPLINK) for h in (A, B, C, D)}
    young = Past(waiting=[7.0] * 5)
    monitor.restore(cases, {**pasts, (Kind.UPLINK, NEW): young})
    newest = {(Kind.UPLINK, A): Level(math.log(1024.0), False)}
    cares = {h: Care(Rung.SMALLER_SHARE, "", "") for h in (A, B, C)}
    return health_report(RoundId(8), monitor, [WATCH, STORAGE], newest, cares)


FLAPPER, CUTTER, SILENT, LIAR, BUSY = (Hotkey(letter * 48) for letter in "fgsly")


def troubled() -> HealthReport:
    """The same, with machines whose rates are as usual, or not known yet."""
    broken = [
        restored(Break.FLAP, FLAPPER, RoundId(7), 5, 8, 15),
        restored(Break.TRUNCATE, A, RoundId(6), 4, 9, 3),
        restored(Break.TRUNCATE, CUTTER, RoundId(6), 4, 4, 9),
        restored(Break.UNREACHABLE, SILENT, RoundId(5), 6, 9, 12),
    ]
    names = {(Break.TRUNCATE, A): "subnet 10.9.0.0/24", (Break.TRUNCATE, CUTTER): "subnet 10.9.0.0/24"}
    claims = [Claim(LIAR, RoundId(2), 7, 8.0)]
    found = findings_of(broken, names, claims, {BUSY: 30}, with_breaks({}, broken))
    return replace(told(), findings=(*told().findings, *found))


@pytest.fixture
def reply() -> Findings:
    health = to_json(told())
    assert isinstance(health, dict)
    return Findings(run="demo", hotkey=VALIDATOR.hotkey, leading=True, health=health)


@pytest.fixture
def url(reply: Findings) -> Iterator[str]:
    def answer(request: Request) -> Reply:
        assert request.path == "/v1/findings"
        return Reply(body=reply.model_dump_json().encode())

    with ScriptedServer(answer) as server:
        yield server.url("")


def test_health_tells_who_in_what_since_when_how_sure_and_what_is_done(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert brigade(["health", "--url", url]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == f"run demo after round 8, by the leader {VALIDATOR.hotkey}"
    verdict = "verdict: subnet 10.3.0.0/24 (2 machines) uploads at 50% of its own past since round 7: 6.2 sigma, probed"
    place = out.index(verdict)
    assert out[place + 1] == f"  {A}, {B}: no reduce duties, and rounds count on what it does now"
    assert out[place + 2].startswith("  way back: probes go on by themselves")
    assert any(line.startswith(f"verdict: {C} trains at 50%") for line in out)
    assert any(line.startswith(f"watched: {D} downloads at 50%") for line in out)
    assert any("no miner is blamed in uplink meanwhile" in line for line in out)


def test_health_for_programs(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert brigade(["health", "--url", url, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["run"], found["round"]) == ("demo", 8)
    [group] = [one for one in found["findings"] if one["blame"] == "group"]
    assert group["members"] == [A, B]
    assert group["done"] == {A: "smaller_share", B: "smaller_share"}
    assert group["left"] == pytest.approx(0.5)


def test_explain_tells_the_rates_the_verdict_and_the_way_back(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert brigade(["explain", A, "--url", url]) == 0
    out = capsys.readouterr().out
    assert "uploads: 1.0 KiB/s in its newest round, 50% of 2.0 KiB/s usually, give or take 25% (20 rounds)" in out
    assert "downloads: nothing was seen yet" in out
    assert "that is its group's fault: it costs no strike" in out
    assert "way back: probes go on by themselves" in out
    assert brigade(["explain", NEW, "--url", url]) == 0
    out = capsys.readouterr().out
    assert "5 of the 12 rounds are known before which nobody is blamed" in out
    assert out.splitlines()[-1] == "nothing is held against it"
    assert brigade(["explain", A, "--url", url, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["hotkey"], len(found["findings"]), found["rates"]["downlink"]) == (A, 1, None)


@pytest.fixture
def troubled_url(reply: Findings) -> Iterator[str]:
    health = to_json(troubled())
    body = reply.model_copy(update={"health": health}).model_dump_json().encode()
    with ScriptedServer(lambda _: Reply(body=body)) as server:
        yield server.url("")


def test_health_tells_what_breaks_what_is_done_and_the_way_back(
    troubled_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert brigade(["health", "--url", troubled_url]) == 0
    out = capsys.readouterr().out.splitlines()
    flap = out.index(f"verdict: {FLAPPER} went and returned in 5 of 8 stretches of its connection since round 7")
    assert out[flap + 1] == f"  {FLAPPER}: no reduce duties"
    assert out[flap + 2].startswith("  way back: 15 stretches without a break in a row release it")
    cut = out.index("verdict: subnet 10.9.0.0/24 (2 machines) cut 8 of 13 transfers short since round 6")
    assert out[cut + 1] == f"  {A}, {CUTTER}: no reduce duties"
    silent = out.index(f"verdict: {SILENT} did not answer 6 of 9 probes that it was ordered since round 5")
    assert out[silent + 1].endswith("it is told, and nothing is done")
    assert any(line.startswith(f"told only: {LIAR} claims 8 times as much as it shows") for line in out)
    assert any(line.startswith(f"told only: {BUSY} has put off 30 probes in a row") for line in out)


def test_what_breaks_for_programs(troubled_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert brigade(["health", "--url", troubled_url, "--json"]) == 0
    found = {(one["kind"], one["name"]): one for one in json.loads(capsys.readouterr().out)["findings"]}
    flap = found["flap", FLAPPER]
    assert (flap["failed"], flap["made"], flap["done"]) == (5, 8, {FLAPPER: "no_duties"})
    assert found["truncate", "subnet 10.9.0.0/24"]["blame"] == "group"
    assert found["claims", LIAR]["done"] == {LIAR: "nothing"}


def test_explain_tells_what_breaks_and_why_nothing_more_follows(
    troubled_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = {}
    for hotkey in (FLAPPER, A, LIAR):
        assert brigade(["explain", hotkey, "--url", troubled_url]) == 0
        said[hotkey] = capsys.readouterr().out
    assert "training: nothing was seen yet" in said[FLAPPER]
    assert "look at its connection; it costs no strike and no pay" in said[FLAPPER]
    assert said[FLAPPER].splitlines()[-1].startswith("way back: 15 stretches without a break")
    assert "probes go on by themselves" in said[A]
    assert "transfers that come whole" in said[A].splitlines()[-1], "both ways back"
    assert "duties, weights and pay are by what it shows" in said[LIAR]
    assert "way back" not in said[LIAR]


def test_nobody_who_answers_is_exit_3_and_a_stranger_exit_2(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert brigade(["explain", "nobody", "--url", url]) == 2
    assert brigade(["health", "--url", "http://127.0.0.1:1"]) == 3
    assert brigade(["health", "--url", "127.0.0.1:1"]) == 2
    assert "no validator answers" in capsys.readouterr().err


@pytest.mark.parametrize("change", [{"leading": False}, {"health": None}])
def test_a_validator_that_knows_nothing_now_says_why(
    reply: Findings, change: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    body = reply.model_copy(update=change).model_dump_json().encode()
    with ScriptedServer(lambda _: Reply(body=body)) as server:
        assert brigade(["health", "--url", server.url("")]) == 3
    assert "the validator at" in capsys.readouterr().err


def test_a_run_where_nobody_is_slow_says_so(reply: Findings, capsys: pytest.CaptureFixture[str]) -> None:
    health = to_json(replace(told(), findings=()))
    body = reply.model_copy(update={"health": health}).model_dump_json().encode()
    with ScriptedServer(lambda _: Reply(body=body)) as server:
        assert brigade(["health", "--url", server.url("")]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "none of 5 miners is slower than it usually is"


def test_an_answer_that_is_no_health_is_refused(reply: Findings, capsys: pytest.CaptureFixture[str]) -> None:
    body = reply.model_copy(update={"health": {"round": "x"}}).model_dump_json().encode()
    with ScriptedServer(lambda _: Reply(body=body)) as server:
        assert brigade(["health", "--url", server.url("")]) == 1
    assert "bad_health" in capsys.readouterr().err
