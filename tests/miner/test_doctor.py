"""The doctor on this machine, against a run that is really there: what it finds, and how it ends."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from bittensor_core import Keypair

from common.chain import commitment
from common.chain.wallets import ensure_wallet
from common.cli import run
from common.clock import SystemClock
from common.errors import Retryable
from common.units import Hotkey, Revision
from miner.doctor.choices import Limits, Ports, Settings
from miner.doctor.facts import Facts, Link, Machine, Speed
from miner.doctor.links import DownLimits
from miner.doctor.look import examine
from miner.doctor.machine import look_at_machine
from miner.doctor.machinelines import shard_of
from miner.doctor.report import Level, Line, Report
from miner.doctor.speed import SpeedLimits, measure_speed
from miner.doctor.verdict import judge
from tests.miner.leader import MINER, NETUID, Leader
from tests.runlog.support import ALICE
from tests.support.faultproxy import FaultProxy
from tests.support.link import Link as Line_of_limited_rate

QUICK = Limits(look_s=60.0, down=DownLimits(most_s=1.0), speed=SpeedLimits(budget_s=0.05, longest_s=60.0))
LATE_S = 300.0


class OffClock(SystemClock):
    """This machine's clock, five minutes behind."""

    def wall_ns(self) -> int:
        return super().wall_ns() - int(LATE_S * 1e9)


def settings_in(folder: Path, uri: str = "//Miner0") -> Settings:
    """Of a miner whose wallet is there."""
    ensure_wallet(folder / "wallets", "miner-1", make=lambda: Keypair.create_from_uri(uri))
    return Settings(
        netuid=NETUID,
        preset=None,
        wallets=folder / "wallets",
        wallet="miner-1",
        hotkey="default",
        folder=folder / "brigade-run",
        cache=folder / "brigade-run" / "cache",
        device="cpu",
        threads=1,
        allow_private=True,
    )


def doctor(leader: Leader, settings: Settings, **changes: object) -> tuple[Facts, Report]:
    """Facts and report; ``changes`` are to the ports."""
    ports = replace(Ports(leader.chain.port(), SystemClock(), limits=QUICK), **changes)  # type: ignore[arg-type]
    facts = asyncio.run(examine(settings, ports))
    return facts, judge(facts)


def bad(report: Report) -> list[Line]:
    """What would keep one from mining."""
    return [line for line in report.lines if line.level in (Level.FAIL, Level.SLOW)]


def line(report: Report, check: str) -> Line:
    return next(line for line in report.lines if line.check == check)


def test_a_machine_without_a_gpu_that_is_fast_enough_keeps_up(leader: Leader, tmp_path: Path) -> None:
    leader.open_round()
    facts, report = doctor(leader, settings_in(tmp_path))
    assert (report.exit_code, bad(report)) == (0, []), [str(line) for line in report.lines]
    assert line(report, "device").level is Level.WARN
    assert "no GPU" in line(report, "device").text
    for check in (
        "memory",
        "disk",
        "clock",
        "wallet",
        "chain",
        "seat",
        "run",
        "validator",
        "downlink",
        "speed",
        "answer",
    ):
        assert line(report, check).level is Level.OK, line(report, check)
    assert MINER.hotkey in line(report, "wallet").text
    assert f"the leader {ALICE.hotkey}" in line(report, "validator").text
    assert facts.remote is not None
    assert isinstance(facts.remote.downlink, Link)
    assert isinstance(facts.speed, Speed)
    assert facts.speed.whole_batch
    assert report.answer is not None
    assert report.answer.tokens > 0
    assert not leader.seen.beats, "it only looks"
    assert not (tmp_path / "brigade-run").exists()


def test_an_uplink_that_nobody_lets_us_try_is_not_made_up(leader: Leader, tmp_path: Path) -> None:
    facts, report = doctor(leader, settings_in(tmp_path))
    said = line(report, "uplink")
    assert said.level is Level.WARN
    assert said.text.startswith("not measured")
    assert "bit/s" in said.text, "it tells what is needed"
    assert report.to_json(facts)["uplink_bps"] is None
    assert report.to_json(facts)["uplink_wanted_bps"] > 0


def test_a_clock_five_minutes_off_is_told_with_the_cure(leader: Leader, tmp_path: Path) -> None:
    _, report = doctor(leader, settings_in(tmp_path), clock=OffClock())
    assert report.exit_code == 3
    assert [one.check for one in bad(report)] == ["clock"]
    for source in ("storage", "validator", "chain"):
        assert source in line(report, "clock").text
    assert "5m00s behind" in line(report, "clock").text or "4m59s behind" in line(report, "clock").text
    assert "NTP" in line(report, "clock").do


def test_a_hotkey_without_a_seat_is_told_to_register(leader: Leader, tmp_path: Path) -> None:
    facts, report = doctor(leader, settings_in(tmp_path, uri="//Stranger"))
    assert report.exit_code == 3
    assert [one.check for one in bad(report)] == ["seat"]
    assert f"no seat on subnet {NETUID}" in line(report, "seat").text
    assert "register" in line(report, "seat").do
    assert isinstance(facts.speed, Speed), "the rest is looked at all the same"


def test_without_a_wallet_everything_else_is_looked_at(leader: Leader, tmp_path: Path) -> None:
    settings = replace(settings_in(tmp_path), wallet="nobody")
    _, report = doctor(leader, settings)
    assert report.exit_code == 3
    assert [one.check for one in bad(report)] == ["wallet"]
    assert "cannot read the key" in line(report, "wallet").text
    assert line(report, "validator").level is Level.OK
    assert report.answer is not None


def test_a_full_disk_is_told_with_what_is_needed(leader: Leader, tmp_path: Path) -> None:
    _, report = doctor(leader, settings_in(tmp_path), free_bytes=lambda _: 1 << 20)
    assert report.exit_code == 3
    assert [one.check for one in bad(report)] == ["disk"]
    assert "1.0 MiB free" in line(report, "disk").text
    assert "dataset" in line(report, "disk").text
    assert "--dir" in line(report, "disk").do


@contextmanager
def behind_a_proxy(leader: Leader, link: Line_of_limited_rate) -> Iterator[FaultProxy]:
    """The run's storage, committed at the proxy's address."""
    chain, owner = leader.chain.subnets[NETUID], Hotkey(leader.spec.owner)
    with FaultProxy(leader._server.url(), link=link) as proxy:
        here = commitment.decode(chain.commitments[owner])
        chain.commitments[owner] = commitment.encode(replace(here, endpoint=proxy.endpoint))
        yield proxy


def test_a_line_too_slow_for_the_run_does_not_keep_up(tmp_path: Path) -> None:
    # An update of this run has some kilobytes, and a round a quarter of a second.
    with Leader(tmp_path, train_deadline_s=0.2, submit_deadline_s=0.05) as leader:
        leader.open_round()
        with behind_a_proxy(leader, Line_of_limited_rate(down_bps=64e3)):
            facts, report = doctor(leader, settings_in(tmp_path))
    assert report.exit_code == 1
    assert [one.check for one in bad(report)] == ["downlink", "answer"]
    assert facts.remote is not None
    assert isinstance(facts.remote.downlink, Link)
    assert facts.remote.downlink.rate_bps < 100e3
    assert "are needed" in line(report, "downlink").text
    assert "would not keep up" in line(report, "answer").text
    assert report.to_json(facts)["keeps_up"] is False


def uncommitted(leader: Leader) -> None:
    leader.chain.subnets[NETUID].commitments.clear()


def another_spec(leader: Leader) -> None:
    chain, owner = leader.chain.subnets[NETUID], Hotkey(leader.spec.owner)
    here = commitment.decode(chain.commitments[owner])
    chain.commitments[owner] = commitment.encode(replace(here, spec_sha256="ab" * 32))  # type: ignore[arg-type]


def storage_away(leader: Leader) -> None:
    leader.store_down = True


def chain_away(leader: Leader) -> None:
    leader.chain.fail_next["block"] = [Retryable("no connection to the chain")]


def validator_away(leader: Leader) -> None:
    leader.down = True


@pytest.mark.parametrize(
    ("break_it", "check", "text"),
    [
        (chain_away, "chain", "no connection"),
        (uncommitted, "run", "has not committed a run"),
        (another_spec, "run", "SHA-256"),
        (storage_away, "run", "503"),
        (validator_away, "validator", "503"),
    ],
)
def test_what_is_broken_is_named_and_nothing_else(
    leader: Leader, tmp_path: Path, break_it: Callable[[Leader], None], check: str, text: str
) -> None:
    break_it(leader)
    _, report = doctor(leader, settings_in(tmp_path))
    assert report.exit_code == 3
    assert [one.check for one in bad(report)] == [check]
    assert text in line(report, check).text
    assert line(report, "wallet").level is Level.OK


def test_a_validator_whose_answer_another_key_signs_is_not_believed(leader: Leader, tmp_path: Path) -> None:
    sign = leader._signed
    leader._signed = lambda request, status, message: replace(  # type: ignore[method-assign]
        sign(request, status, message), headers={"X-Brigade-Signature": "00" * 64}
    )
    _, report = doctor(leader, settings_in(tmp_path))
    assert report.exit_code == 3
    assert "signature" in line(report, "validator").text


def test_private_addresses_are_not_called_unless_allowed(leader: Leader, tmp_path: Path) -> None:
    _, report = doctor(leader, replace(settings_in(tmp_path), allow_private=False))
    assert report.exit_code == 3
    assert "--allow-private" in line(report, "run").text


def test_a_machine_too_slow_for_whole_steps_is_measured_with_small_ones(leader: Leader) -> None:
    machine = look_at_machine("cpu", threads=1)
    assert isinstance(machine, Machine)
    told: list[Speed] = []
    shard, limits = shard_of(leader.spec), SpeedLimits(budget_s=0.0, longest_s=0.0)
    measure_speed(leader.spec, shard, machine, Revision(0), limits, time.monotonic, told.append)
    assert [(speed.step_tokens, speed.whole_batch) for speed in told] == [(leader.spec.data.seq_len, False)]
    facts = Facts(machine, (), leader.spec, None, speed=told[-1])
    assert "would have taken too long" in line(judge(facts), "speed").text


# The command.


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ([], "--preset"),
        (["--netuid", "2", "--preset", "nano"], "not both"),
        (["--preset", "huge"], "unknown preset"),
        (["--preset", "nano", "--device", "tpu"], "choose auto, cpu"),
        (["--preset", "nano", "--measure-s", "nan"], "--measure-s must be"),
    ],
)
def test_wrong_flags_end_in_one_line(flags: list[str], text: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", *flags]) == 2
    said = capfd.readouterr().err.strip()
    assert text in said
    assert len(said.splitlines()) == 1


def test_a_preset_is_looked_at_offline(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    flags = ["--device", "cpu", "--threads", "1", "--measure-s", "0.01", "--dir", str(tmp_path)]
    assert run(["doctor", "--preset", "nano", "--json", *flags]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["keeps_up"] is True
    assert found["tokens_per_s"] > 0
    assert [line["check"] for line in found["lines"]] == ["device", "memory", "disk", "speed", "answer"]
    assert not list(tmp_path.iterdir())
