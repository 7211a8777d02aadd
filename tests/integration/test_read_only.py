"""A validator without keys of the storage beside a leader: it follows, scores, and serves its reports over its API."""

from __future__ import annotations

import urllib.request
from pathlib import Path

from common.reports import Report, decode_report
from common.wire import MAX_REPLY_BYTES, ReportIndex, Status, parse
from tests.integration.support import SLOWED, begun, commits, spec_for
from tests.support.rig import SERVED_IP, Rig
from tests.support.rigging import running

MINERS = ["miner-1", "miner-2"]


def test_a_validator_without_keys_follows_and_serves_its_reports_also_after_a_kill(tmp_path: Path) -> None:
    with running(tmp_path / "run", spec_for(2), miners=2, validators=2) as rig:
        rig.start_validator()
        for name in MINERS:
            rig.start_miner(name, *SLOWED)
        begun(rig, MINERS)
        name = rig.wallets.validators[1].name
        part = rig.start_validator(name=name, keys=False)
        first = rig.until(lambda: reported(rig, name), "the follower's first report")
        part.kill()
        commits(rig, 1)
        rig.start_validator(name=name, keys=False)
        rig.until(lambda: (reported(rig, name) or first) > first, "a report of a later round after the kill")

        reports = [report(rig, name, one) for one in index(rig, name).names]
        assert {one.signer for one in reports} == {rig.wallets.validators[1].hotkey_ss58}
        assert all(member.score > 0 for member in reports[0].members)
        status = parse(Status, fetched(rig, name, "status"), MAX_REPLY_BYTES)
        assert not status.leading
        assert status.convicted == []
        assert "never leads" in status.waiting_for
        assert rig.state is not None
        assert len(rig.state.leaders) == 1


def reported(rig: Rig, name: str) -> int:
    """One more than the newest round of which it serves a report; 0 before."""
    try:
        names = index(rig, name).names
    except OSError:
        return 0
    return int(names[0].split("-")[0]) + 1 if names else 0


def index(rig: Rig, name: str) -> ReportIndex:
    return parse(ReportIndex, fetched(rig, name, "reports"), MAX_REPLY_BYTES)


def report(rig: Rig, name: str, one: str) -> Report:
    return decode_report(fetched(rig, name, f"reports/{one}"), rig.spec.run)[0]


def fetched(rig: Rig, name: str, what: str) -> bytes:
    with urllib.request.urlopen(f"http://{SERVED_IP}:{rig.ports[name]}/v1/{what}", timeout=5.0) as reply:
        return bytes(reply.read())
