"""``brigade run …`` against a real S3 server: by folder, and by address without keys."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from bittensor_core import Keypair
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from common import keys
from common.chain.wallets import ensure_wallet
from common.cli import run as brigade
from common.errors import Rejected
from common.model.layout import run_layouts
from common.reports import Report
from common.runlog.commands import decode_command, read_orders
from common.runlog.entries import SCHEMA, Resumed
from common.runlog.lease import Lease, encode_lease
from common.runlog.orders import due
from common.runlog.reader import LogReader
from common.spec import spec_hash
from common.store.config import StorageConfig, save_config
from common.store.port import ObjectStore
from common.store.s3 import S3Store
from common.units import Hotkey, Revision, RoundId, ShardId
from tests.runlog.support import ALICE, OWNER, small_spec
from tests.runlog.world import World, begin_world, eventful_world
from tests.support.storage import fresh_prefix, quick_store, running_server
from tests.up.test_health import told
from validator.run_cli import tell_new
from validator.scoring.reports import write_report
from validator.up.folder import Begun, save_begun

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def world() -> World:
    return eventful_world(num_shards=2)


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory, world: World) -> Iterator[StorageConfig]:
    """The run's objects on a server, readable by everybody under their prefix."""
    with running_server(tmp_path_factory.mktemp("seaweed")) as (_, config):
        config = fresh_prefix(config)
        store = S3Store(config)
        copy_into(store, world)
        store.allow_public_reads()
        yield config


def copy_into(store: ObjectStore, world: World) -> None:
    """Put all of a world's objects into another store."""
    for info in world.store.list(""):
        store.put(info.key, world.store.get(info.key, max_bytes=1 << 30).body)


@pytest.fixture
def store(bucket: StorageConfig) -> ObjectStore:
    return quick_store(bucket)


@pytest.fixture
def folder(tmp_path: Path, bucket: StorageConfig, world: World) -> Path:
    save_config(bucket, tmp_path / "storage.json")
    facts = {"run": "tiny", "spec_sha256": spec_hash(world.spec), "netuid": 2}
    (tmp_path / "run.json").write_text(json.dumps(facts))
    return tmp_path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*args: str | Path) -> tuple[int, str, str]:
        code = brigade(["run", *map(str, args)])
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def test_status_of_a_run_whose_validator_is_gone_tells_what_its_bucket_knows(
    folder: Path, world: World, store: ObjectStore, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "ports.json").write_text(json.dumps({"validator": 1}))
    lease = Lease(SCHEMA, "tiny", Hotkey(ALICE.hotkey), "a" * 32, 1, 7, "b" * 32)
    store.put(keys.lease_key("tiny"), encode_lease(lease, ALICE))
    try:
        assert brigade(["status", "--dir", str(folder)]) == 3
    finally:
        store.delete(keys.lease_key("tiny"))
    said = capsys.readouterr()
    assert "no validator answers" in said.err
    assert f"revision {world.state.head}; {world.state.leader} led last (term {world.state.term})" in said.out
    assert f"{ALICE.hotkey} held the lease for term 1 and renewed it" in said.out
    assert said.out.count("\n") == 2 + 5, "the newest entries are told"
    assert brigade(["status", "--dir", str(folder), "--json"]) == 3
    told = json.loads(capsys.readouterr().out)
    assert (told["head"], told["lease"]) == (world.state.head, "nobody holds the lease")


def test_health_of_a_run_whose_validator_is_gone_is_what_its_last_leader_reported(
    folder: Path, world: World, store: ObjectStore, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "ports.json").write_text(json.dumps({"validator": 1}))
    save_begun(Begun(1, "tiny", "nano", 0, 2, None, None, None, 1.0, 2, spec_hash(world.spec)), folder / "run.json")
    assert brigade(["health", "--dir", str(folder)]) == 3
    assert "no leader's newest report tells" in capsys.readouterr().err
    made = Report(SCHEMA, "tiny", ALICE.hotkey, RoundId(0), Revision(1), True, 3.0, 2.0, (), told())
    key = write_report(store, made, ALICE)
    try:
        assert brigade(["health", "--dir", str(folder)]) == 0
    finally:
        store.delete(key)
    said = capsys.readouterr()
    assert "no validator answers" in said.err
    assert f"by the report of {ALICE.hotkey} on round 0" in said.out
    assert "verdict: subnet 10.3.0.0/24" in said.out


def test_verify_passes_and_says_what_it_checked(run: Run, folder: Path, world: World) -> None:
    code, out, err = run("verify", "--dir", folder)
    assert (code, err) == (0, "")
    assert "merges: 6 computed again, all bits equal" in out
    assert "run tiny is whole: head is revision 3" in out
    assert out.count("nothing refers to: runs/tiny/rounds/1/") == 2
    assert "1 stale_term" in out


def test_verify_names_the_object_whose_byte_was_flipped(
    run: Run, folder: Path, world: World, store: ObjectStore
) -> None:
    made = world.state.revisions[world.state.head].shards[1].update
    node = world.state.head_node
    assert made is not None
    assert node.round is not None
    key = keys.update_key("tiny", node.round, ShardId(1), made.sha256)
    body = store.get(key, max_bytes=1 << 20).body
    store.put(key, body[:40] + bytes([body[40] ^ 1]) + body[41:])
    try:
        code, _, err = run("verify", "--dir", folder)
    finally:
        store.put(key, body)
    assert code == 1
    assert key in err


def test_the_log_reads_like_a_story(run: Run, folder: Path, world: World) -> None:
    code, out, _ = run("log", "--dir", folder)
    assert code == 0
    lines = out.splitlines()
    assert len(lines) == 1 + world.state.next_seq
    for text in (
        "the run begins with spec",
        "takes the lead",
        "round 0 opens on revision 0",
        "round 1 ends without a revision",
        "leader_changed counts for nothing, stale_term",
        "not_uploaded",
        "tokens merged",
        "since it opened",
    ):
        assert text in out, text


def test_the_log_for_programs_is_one_object_a_line(run: Run, folder: Path, world: World) -> None:
    _, out, _ = run("log", "--dir", folder, "--json")
    entries = [json.loads(line) for line in out.splitlines()]
    assert [entry["seq"] for entry in entries] == list(range(world.state.next_seq))
    assert [entry["kind"] for entry in entries if not entry["void"]].count("revision_committed") == 3
    assert sum(entry["void"] == "stale_term" for entry in entries) == 1


def test_a_public_bucket_is_read_without_keys(run: Run, bucket: StorageConfig, world: World) -> None:
    address = ("--endpoint", bucket.endpoint, "--bucket", bucket.bucket, "--prefix", bucket.prefix, "--run", "tiny")
    code, out, _ = run("show", *address)
    assert code == 0
    assert out.startswith(f"spec {spec_hash(world.spec)}")
    assert "rope_theta" in out
    code, out, _ = run("log", *address)
    assert code == 0
    code, _, err = run("verify", *address)
    assert code == 2
    assert "--access-key" in err


@pytest.mark.parametrize("revision", [None, 1])
def test_export_writes_what_was_committed(
    run: Run, folder: Path, tmp_path: Path, world: World, revision: int | None
) -> None:
    out = tmp_path / "model"
    extra = () if revision is None else ("--revision", str(revision))
    code, said, _ = run("export", "--dir", folder, "--out", out, *extra)
    assert code == 0
    assert f"revision {3 if revision is None else revision} (" in said
    assert json.loads((out / "config.json").read_text())["model_type"] == "llama"
    if revision is None:
        tensors = load_file(out / "model.safetensors")
        for shard, layout in enumerate(run_layouts(world.spec.model, world.spec.num_shards)):
            for name, tensor in layout.views(world.memory[ShardId(shard)].weights):
                assert np.array_equal(tensors[name], tensor)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("log", "--dir", "nowhere"), "nowhere is no folder of a run"),
        (("log", "--endpoint", "http://127.0.0.1:1"), "--endpoint and --bucket go together"),
        (("log", "--endpoint", "http://127.0.0.1:1", "--bucket", "abc"), "--run NAME"),
        (("log", "--endpoint", "http://x", "--bucket", "abc", "--run", "r", "--access-key", "k"), "go together"),
        (("log", "--endpoint", "http://x", "--bucket", "abc", "--run", "r", "--dir", "."), "give one of them"),
        (("verify", "--endpoint", "http://x", "--bucket", "abc", "--run", "r", "--spec-sha256", "7"), "64 lowercase"),
    ],
)
def test_what_is_not_said_or_said_twice_is_refused_in_one_line(run: Run, args: tuple[str, ...], said: str) -> None:
    code, out, err = run(*args)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


def test_a_revision_that_is_not_there_is_refused(run: Run, folder: Path, tmp_path: Path) -> None:
    code, _, err = run("export", "--dir", folder, "--out", tmp_path / "model", "--revision", "9")
    assert code == 2
    assert "revisions 0 to 3" in err


def test_an_export_onto_a_file_is_refused_before_anything_is_read(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for out in (tmp_path / "file", tmp_path / "file" / "model"):
        code, _, err = run("export", "--dir", tmp_path / "nothing", "--out", out)
        assert code == 2
        assert "no folder" in err


def test_another_hash_than_the_committed_one_is_refused(run: Run, folder: Path, world: World) -> None:
    other = spec_hash(replace(world.spec, seed=1))
    for command in ("show", "log", "verify"):
        code, _, err = run(command, "--dir", folder, "--spec-sha256", other)
        assert code == 1
        assert "spec.json" in err


def test_following_tells_only_what_is_new() -> None:
    w, said = eventful_world(), list[str]()
    reader = LogReader(w.reader, w.spec)
    state = tell_new(reader, None, said.append, for_programs=False)
    assert state == w.state
    assert tell_new(reader, state, said.append, for_programs=False) == state
    before = len(said)
    w.run_round()
    assert tell_new(reader, state, said.append, for_programs=False) == w.state
    assert len(said) == before + 3


def test_only_the_owner_lets_a_paused_run_go_on(run: Run, tmp_path: Path, bucket: StorageConfig) -> None:
    w, config = begin_world(small_spec()), fresh_prefix(bucket)
    store = quick_store(config)
    copy_into(store, w)
    save_config(config, tmp_path / "storage.json")
    ensure_wallet(tmp_path / "wallets", "owner", make=lambda: Keypair.create_from_uri("//Owner"))
    ensure_wallet(tmp_path / "wallets", "other")
    there = ("resume", "--no-wait", "--dir", tmp_path, "--run", "tiny")
    code, _, err = run(*there)
    assert (code, "is not paused" in err) == (2, True)

    w.pause_for_failures()
    copy_into(store, w)
    code, _, err = run(*there, "--wallet", "other")
    assert (code, OWNER.hotkey in err) == (2, True)
    assert read_orders(store, w.spec) == ()
    code, out, _ = run(*there)
    assert code == 0
    assert "paused: loss_guard" in out
    found = due(w.state, read_orders(store, w.spec))
    assert found is not None

    w.append(Resumed(found.sha256))
    w.pause_for_failures()
    assert due(w.state, read_orders(store, w.spec)) is None, "an order is good for one pause"


@given(st.binary(max_size=300))
def test_what_is_no_command_of_the_owner_is_refused(data: bytes) -> None:
    with pytest.raises(Rejected):
        decode_command(data, small_spec())
