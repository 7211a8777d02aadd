"""The embedded server: private, local, and back on the same ports with everything it acknowledged."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from common.errors import BrigadeError, OperatorError, SetupError
from common.ports import is_free
from common.store.http import HttpClient
from common.store.multipart import MIN_PART_BYTES
from common.store.ports import GRPC_OFFSET, free_port_pairs
from common.store.retry import NO_RETRIES
from common.store.s3 import S3Store
from common.store.seaweed import MAX_OUTPUT_BYTES, SeaweedServer, find_weed
from common.store.transfer import upload
from tests.store.bench import presign_part
from tests.support.storage import quick_store, running_server

DEADLINE_S = 60.0


def process_ended(pid: int) -> bool:
    """Whether the process is gone or a zombie whose parent has not looked yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def wait_until(condition: object, what: str) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline_s, f"waited {DEADLINE_S} s for {what}"
        time.sleep(0.02)


def listening_addresses(pid: int) -> set[str]:
    """The local addresses (hex, as in /proc/net/tcp) that the process listens on."""
    links = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
    sockets = {link[8:-1] for link in links if link.startswith("socket:[")}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in sockets:
                found.add(fields[1].partition(":")[0])
    return found


def test_a_crash_loses_nothing_acknowledged_and_nobody_need_learn_a_new_address(
    tmp_path: Path, http: HttpClient
) -> None:
    with running_server(tmp_path) as (server, config):
        assert listening_addresses(server.pid or 0) == {"0100007F"}  # 127.0.0.1 and nothing else
        for name in ("storage.json", "ports.json"):
            assert (tmp_path / name).stat().st_mode & 0o777 == 0o600

        store = S3Store(config, policy=NO_RETRIES)
        upload_id, body = store.create_multipart("parts"), random.Random(9).randbytes(MIN_PART_BYTES)
        put = presign_part(store, "parts", upload_id, 1, body)
        upload(put.url, put.headers, body, http=http)
        acknowledged: list[int] = []

        def write(worker: int) -> None:
            try:
                for number in range(worker, 100_000, 4):
                    store.put(f"log/{number}", random.Random(number).randbytes(2_000), if_none_match=True)
                    acknowledged.append(number)
                    if len(acknowledged) > 60:
                        server.kill()
            except BrigadeError:
                return  # the server died under this writer

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(write, range(4)))
        assert server.returncode() == -signal.SIGKILL
        assert server.start() == config
        store = quick_store(config)
        for number in acknowledged:
            assert store.get(f"log/{number}", max_bytes=2_000).body == random.Random(number).randbytes(2_000)
        assert [begun.upload_id for begun in store.list_uploads("parts")] == [upload_id]
        store.complete_multipart("parts", upload_id, store.list_parts("parts", upload_id))
        assert store.get("parts", max_bytes=MIN_PART_BYTES).body == body
        pid = server.pid
    assert server.returncode() is not None
    assert process_ended(pid or 0)
    server.stop()  # once more does no harm


def test_the_server_dies_with_its_parent(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from common.store.seaweed import SeaweedServer\n"
        "server = SeaweedServer(Path(sys.argv[1])); server.start(die_with_parent=True)\n"
        "print(server.pid, flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert not process_ended(pid)
        parent.kill()
    wait_until(lambda: process_ended(pid), "the server to die with its parent")


def test_a_directory_is_for_one_bucket_and_one_port(tmp_path: Path) -> None:
    port = free_port_pairs(1, random.Random())[0]
    first = SeaweedServer(tmp_path, bucket="first", s3_port=port)
    config, _ = first._prepare()
    assert config.endpoint == f"http://127.0.0.1:{port}"
    assert SeaweedServer(tmp_path, bucket="first")._prepare()[0] == config
    with pytest.raises(OperatorError, match="first"):
        SeaweedServer(tmp_path, bucket="second")._prepare()
    with pytest.raises(OperatorError, match="port"):
        SeaweedServer(tmp_path, bucket="first", s3_port=port + 1)._prepare()
    (tmp_path / "ports.json").write_text("[]")
    with pytest.raises(SetupError, match="damaged"):
        SeaweedServer(tmp_path, bucket="first")._prepare()


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    server = SeaweedServer(tmp_path)
    config, ports = server._prepare()
    with socket.socket() as squatter:
        squatter.bind(("127.0.0.1", ports["filer"] + GRPC_OFFSET))
        squatter.listen()
        clock = iter([0.0, 0.0, 40.0])
        with pytest.raises(SetupError, match=f"{ports['filer']} or {ports['filer'] + GRPC_OFFSET} is in use"):
            server.start(monotonic_s=lambda: next(clock), sleep=lambda _: None)
    assert server.pid is None
    assert replace(config) == config


def test_port_pairs_are_free_and_out_of_the_way() -> None:
    ports = free_port_pairs(5, random.Random(3))
    assert len(set(ports)) == 5
    for port in ports:
        assert port + GRPC_OFFSET < 32_768
        assert is_free(port)
        assert is_free(port + GRPC_OFFSET)


@pytest.mark.parametrize(("system", "machine"), [("Darwin", "arm64"), ("Windows", "AMD64"), ("Linux", "riscv64")])
def test_other_platforms_get_one_clear_line(system: str, machine: str) -> None:
    with pytest.raises(SetupError) as refusal:
        find_weed(system, machine)
    assert "\n" not in str(refusal.value)
    assert "Linux" in str(refusal.value)


def test_supported_platforms_find_the_program() -> None:
    for machine in ("x86_64", "aarch64"):
        assert find_weed("Linux", machine).name == "weed"


def test_what_the_server_prints_does_not_grow_without_end(tmp_path: Path) -> None:
    server = SeaweedServer(tmp_path)
    output = tmp_path / "server.out"
    output.write_bytes(bytes(1000))
    assert server.returncode() is None
    assert output.stat().st_size == 1000
    output.write_bytes(bytes(MAX_OUTPUT_BYTES + 1))
    assert server.returncode() is None
    assert output.stat().st_size == 0
