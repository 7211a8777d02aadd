"""What operators change while a run goes on: a table, the storage's keys, the bucket. Miners are never started again.

One story of two miners that reduce and two validators. The leader is started again with a table of autonomous systems;
a validator without keys of the storage follows, scores, serves its reports, is killed, comes back, and goes along when
the run gets new keys and then another bucket.
"""

from __future__ import annotations

import dataclasses
import re
import subprocess
import urllib.request
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from common.errors import SetupError
from common.reports import Report, decode_report
from common.runlog.entries import LeaderChanged, StorageMoved
from common.runlog.verify import VerifyReport, verify_run
from common.spec import ReduceSpec, RunSpec
from common.store.config import StorageConfig, load_config, save_config
from common.store.port import AccessDenied
from common.store.retry import NO_RETRIES
from common.store.s3 import S3Store
from common.wire import MAX_REPLY_BYTES, ReportIndex, Status, parse
from tests.integration.support import SLOWED, begun, commits, spec_for
from tests.support.localrun import brigade
from tests.support.rig import SERVED_IP, Rig
from tests.support.rigging import running
from tests.support.storage import running_server
from validator.up.bootstrap import Wallets

MINERS = ["miner-1", "miner-2"]
LEADER, FOLLOWER = "validator", "validator-2"
DEALT = re.compile(r"round (\d+): 2 partitions go to 2 miners")
BY_MINERS = re.compile(r"round (\d+): 2 of 2 partitions reduced by miners;")
BY_THE_LEADER = re.compile(r"round (\d+): 0 of 2 partitions reduced by miners, 2 here: 2 for related owners;")


@dataclass(frozen=True)
class Story:
    """What was found in each chapter."""

    dealt_unrelated: set[str]
    """Rounds before the table whose owners were called related, of those that were dealt out."""
    trusted_before: set[str]
    trusted_after: set[str]
    """Rounds reduced by miners, before the table and at the end."""
    first_report: Report
    status: Status
    led_by: set[str]
    moved: subprocess.CompletedProcess[str]
    miners_kept: bool
    voids: int
    head: int
    verified: VerifyReport


def reducing(netuid: int, wallets: Wallets, data: Path) -> RunSpec:
    spec = spec_for(len(MINERS))(netuid, wallets, data)
    return dataclasses.replace(spec, reduce=ReduceSpec("butterfly", partitions=2, redundancy=2, audits=0))


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    tmp_path = tmp_path_factory.mktemp("operators")
    with (
        running(tmp_path / "run", reducing, len(MINERS), validators=2) as rig,
        running_server(tmp_path / "second") as (_, second),
    ):
        rig.start_validator()
        for name in MINERS:
            rig.start_miner(name, *SLOWED)
        begun(rig, MINERS)
        follower = rig.start_validator(name=FOLLOWER, keys=False)
        pids = {name: rig.parts[name].process.pid for name in MINERS}
        rig.until(lambda: rounds(rig, BY_MINERS), "a round that unrelated miners have reduced")
        dealt_unrelated = rounds(rig, DEALT) & rounds(rig, BY_THE_LEADER)
        trusted = take_a_table(rig, tmp_path / "asn.txt")

        reported_by_first = rig.until(lambda: reported(rig), "the follower's first report")
        follower.kill()
        commits(rig, 1)
        rig.start_validator(name=FOLLOWER, keys=False)
        rig.until(lambda: reported(rig) > reported_by_first, "a report of a later round after the kill")
        first_report = report(rig, index(rig).names[0])

        rotate_keys(rig)
        commits(rig, 1)
        target = replace(second, prefix="moved")
        moved = move(rig, target, tmp_path / "second.json")
        before = rig.head
        commits(rig, 2)
        rig.until(lambda: reported(rig) > before, "a report of the follower on the new bucket")
        status = parse(Status, fetched(rig, "status"), MAX_REPLY_BYTES)
        kept = pids == {name: rig.parts[name].process.pid for name in MINERS}
        alive = all(rig.parts[name].ended() is None for name in MINERS)
        for part in rig.parts.values():
            part.kill()
        return Story(
            dealt_unrelated=dealt_unrelated,
            trusted_before=trusted,
            trusted_after=rounds(rig, BY_MINERS),
            first_report=first_report,
            status=status,
            led_by={entry.signer for entry in rig.entries if isinstance(entry.data, LeaderChanged)},
            moved=moved,
            miners_kept=kept and alive,
            voids=rig.voids,
            head=rig.head,
            verified=verify_run(S3Store(target), rig.spec.run),
        )


def take_a_table(rig: Rig, table: Path) -> set[str]:
    """Start the leader again with a table that says that its miners are one system: rounds that they had reduced."""
    rig.parts[LEADER].kill()
    trusted = rounds(rig, BY_MINERS)
    table.write_text("127.0.0.0/8 64496\n")
    rig.start_validator("--asn-table", str(table))
    rig.until(lambda: rounds(rig, DEALT) & rounds(rig, BY_THE_LEADER), "a round whose two owners are related")
    return trusted


def rotate_keys(rig: Rig) -> None:
    """The service takes other keys from now on, and the operator puts them into the validator's file."""
    config = replace(load_config(rig.server.config_path), access_key="rotated-access", secret_key="rotated-secret")
    rig.server.stop()
    save_config(config, rig.server.config_path)
    rig.server.start(die_with_parent=True, ready_within_s=120.0)
    save_config(config, rig.folder / "storage.json")
    rig.look_in(config)
    with pytest.raises((AccessDenied, SetupError)):
        S3Store(rig.storage, policy=NO_RETRIES).put("probe/old-keys", b"x")


def move(rig: Rig, to: StorageConfig, file: Path) -> subprocess.CompletedProcess[str]:
    """`brigade run move`, and the end of the old storage once the log has it."""
    save_config(to, file)
    url = f"ws://127.0.0.1:{rig.ports['chain']}"
    words = ("run", "move", "--to", str(file), "--dir", str(rig.folder), "--run", rig.spec.run)
    done = brigade(*words, "--chain", url, "--netuid", str(rig.spec.netuid))
    assert done.returncode == 0, done.stderr
    save_config(to, rig.folder / "storage.json")
    rig.look_in(to)
    rig.until(lambda: any(isinstance(entry.data, StorageMoved) for entry in rig.entries), "the move")
    commits(rig, 1)
    rig.server.kill()
    return done


def rounds(rig: Rig, what: re.Pattern[str]) -> set[str]:
    """Of which the leader's log says it."""
    return {found for path in rig.logs.glob("validator*.log") for found in what.findall(path.read_text())}


def reported(rig: Rig) -> int:
    """One more than the newest round of which the follower serves a report; 0 before."""
    try:
        names = index(rig).names
    except OSError:
        return 0
    return int(names[0].split("-")[0]) + 1 if names else 0


def index(rig: Rig) -> ReportIndex:
    return parse(ReportIndex, fetched(rig, "reports"), MAX_REPLY_BYTES)


def report(rig: Rig, name: str) -> Report:
    return decode_report(fetched(rig, f"reports/{name}"), rig.spec.run)[0]


def fetched(rig: Rig, what: str) -> bytes:
    """From the follower's API."""
    with urllib.request.urlopen(f"http://{SERVED_IP}:{rig.ports[FOLLOWER]}/v1/{what}", timeout=5.0) as reply:
        return bytes(reply.read())


def test_miners_of_one_autonomous_system_are_related_when_the_table_says_so(story: Story) -> None:
    assert story.dealt_unrelated == set()
    assert story.trusted_after == story.trusted_before, "nothing of related owners is taken as they made it"


def test_a_validator_without_keys_follows_scores_and_serves_its_reports_also_after_a_kill(story: Story) -> None:
    assert story.first_report.signer == story.status.hotkey
    assert all(member.score > 0 for member in story.first_report.members)
    assert not story.status.leading
    assert story.status.convicted == []
    assert "never leads" in story.status.waiting_for
    assert story.status.hotkey not in story.led_by


def test_new_keys_and_then_a_new_bucket_without_a_restart(story: Story) -> None:
    assert "the chain says so" in story.moved.stdout
    assert story.miners_kept
    assert story.voids == 0
    assert story.verified.state.moved is not None
    assert story.verified.state.head >= story.head
