"""A leader that leaves out what it has given a receipt for: the miner complains, the other validator proves it."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import pytest

from common.cli import run as brigade
from common.convictions import decode_conviction
from common.wire import MAX_REPLY_BYTES, ReportIndex, parse
from tests.integration.support import SLOWED, begun, spec_for
from tests.support.rig import SERVED_IP, Rig
from tests.support.rigging import running

MINERS = ["miner-1", "miner-2"]
LEADER, FOLLOWER, VICTIM = "validator", "validator-2", "miner-1"


def test_a_leader_that_leaves_a_receipted_submission_out_is_convicted_by_a_follower_without_keys(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running(tmp_path / "run", spec_for(2, steps=10), miners=2, validators=2) as rig:
        victims = rig.folder / "left-out"
        rig.start_validator(name=LEADER, wrong=("--leave-out", str(victims)))
        rig.start_validator(name=FOLLOWER, keys=False)
        for name in MINERS:
            rig.start_miner(name, *SLOWED)
        begun(rig, MINERS)
        rig.watched = FOLLOWER
        rig.until(lambda: rig.status is not None and rig.status.convicted == [], "the follower, who convicts nobody")

        victims.write_text(rig.hotkey(VICTIM))
        told = rig.until(lambda: rig.status.convicted if rig.status else None, "the conviction")
        victims.unlink()
        leader = rig.wallets.validators[0].hotkey_ss58
        assert all(one.startswith(f"{leader} left out {rig.hotkey(VICTIM)}") for one in told)

        [name, *_] = rig.until(lambda: convictions(rig), "the conviction among its reports")
        body = fetched(rig, f"reports/{name}")
        conviction = decode_conviction(body, rig.spec.run)
        assert (conviction.signer, conviction.leader) == (rig.wallets.validators[1].hotkey_ss58, leader)
        plan = next(plan for plan in rig.plans if plan.frozen.round == conviction.round)
        assert plan.of(VICTIM) == []
        assert plan.of("miner-2") != []

        good, bad = tmp_path / "conviction.json", tmp_path / "changed.json"
        good.write_bytes(body)
        bad.write_bytes(body.replace(leader.encode(), rig.wallets.validators[1].hotkey_ss58.encode()))
        verify = ["run", "verify", "--dir", str(rig.folder), "--run", rig.spec.run]
        assert brigade([*verify, "--conviction", str(good)]) == 0
        assert "left out" in capsys.readouterr().out
        assert brigade([*verify, "--conviction", str(bad)]) != 0
        assert "left out" not in capsys.readouterr().out


def convictions(rig: Rig) -> list[str]:
    """Names of those that the follower serves."""
    index = parse(ReportIndex, fetched(rig, "reports"), MAX_REPLY_BYTES)
    return [name for name in index.names if name.endswith(".conviction.json")]


def fetched(rig: Rig, what: str) -> bytes:
    with urllib.request.urlopen(f"http://{SERVED_IP}:{rig.ports[FOLLOWER]}/v1/{what}", timeout=5.0) as reply:
        return bytes(reply.read())
