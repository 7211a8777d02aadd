"""Where a run is that somebody wants to look at: a folder of ``brigade up``, or a bucket by its address.

Reading needs no keys where the bucket is public; listing always does. A folder's own storage server is started for
the time of one command when `brigade up` is not running it.
"""

from __future__ import annotations

import atexit
import json
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from common.errors import OperatorError
from common.ports import is_free
from common.runlog.reader import LogReader, load_run, spec_hash_of_log
from common.spec import RunSpec
from common.store.config import StorageConfig, load_config
from common.store.place import BucketPlace
from common.store.port import ObjectStore, StartReader
from common.store.reader import HttpReader, StoreReader
from common.store.s3 import S3Store
from common.store.seaweed import SeaweedServer
from common.units import Sha256, is_sha256
from validator.up.folder import Busy, Folder, locked

DEFAULT_FOLDER = Path("brigade-run")
EMBEDDED = "storage"
"""Folder of the server that `brigade up` runs; its storage.json tells where it listens."""
MAX_RUN_FILE_BYTES = 64 * 1024


@dataclass(frozen=True)
class Asked:
    """What the command line says; None for what it does not."""

    folder: Path | None = None
    endpoint: str | None = None
    bucket: str | None = None
    prefix: str = ""
    region: str = "us-east-1"
    access_key: str | None = None
    secret_key: str | None = None
    run: str | None = None
    spec_sha256: str | None = None


@dataclass(frozen=True)
class Place:
    """A run within reach."""

    run: str
    reader: StartReader
    store: ObjectStore | None
    """With keys: None where the bucket can only be read."""
    spec_sha256: Sha256 | None
    """What the spec's hash must be; None when nobody said."""
    at: BucketPlace | None = None
    """Which bucket that is: once the log says that the run has left it, nothing there counts."""

    def listing_store(self) -> ObjectStore:
        """The store, for what needs to list. Raises OperatorError without keys."""
        if self.store is None:
            raise OperatorError("this needs to list the bucket: give --access-key and --secret-key, or --dir")
        return self.store

    def log(self) -> LogReader:
        """The run's log as far as it counts here."""
        return LogReader(self.reader, self.spec(), lambda: self.at)

    def spec(self) -> RunSpec:
        """The run's spec, proved by the hash that is known, else by the genesis."""
        return load_run(self.reader, self.run, self.spec_sha256 or spec_hash_of_log(self.reader, self.run))


def find(asked: Asked) -> Place:
    """The run that the command line means. Raises OperatorError when it does not say, or says two things."""
    if asked.endpoint is None and asked.bucket is None:
        return _in_folder(asked)
    if asked.folder is not None:
        raise OperatorError("--dir and --endpoint/--bucket name two places: give one of them")
    if asked.endpoint is None or asked.bucket is None:
        raise OperatorError("--endpoint and --bucket go together")
    if asked.run is None:
        raise OperatorError("which run? give --run NAME")
    if (asked.access_key is None) != (asked.secret_key is None):
        raise OperatorError("--access-key and --secret-key go together")
    return _in_bucket(asked, asked.endpoint, asked.bucket, asked.run)


def _in_bucket(asked: Asked, endpoint: str, bucket: str, run: str) -> Place:
    # Without keys the same checks of the address apply; the stand-ins are never sent.
    access, secret = asked.access_key or "none", asked.secret_key or "none"
    config = StorageConfig(endpoint, bucket, access, secret, asked.prefix, asked.region)
    expected = _sha256(asked.spec_sha256)
    if asked.access_key is None:
        return Place(run, HttpReader(config.public_base_url()), None, expected, _place_of(config))
    return _with_keys(config, run, expected)


def _in_folder(asked: Asked) -> Place:
    folder = asked.folder or DEFAULT_FOLDER
    if not folder.is_dir():
        raise OperatorError(f"{folder} is no folder of a run: give --dir, or --endpoint, --bucket and --run")
    if asked.prefix or asked.access_key is not None or asked.secret_key is not None:
        raise OperatorError("--prefix and keys go with --endpoint and --bucket; a --dir has its own")
    path = next((p for p in (folder / "storage.json", folder / "storage" / "storage.json") if p.exists()), None)
    if path is None:
        raise OperatorError(f"{folder} has no storage.json: start the run first (brigade up --dir {folder})")
    facts = _run_file(folder / "run.json")
    run = asked.run or facts.get("run")
    if run is None:
        raise OperatorError(f"{folder} has no run.json: give --run NAME")
    known = facts.get("spec_sha256") if run == facts.get("run") else None
    config = load_config(path)
    if path.parent.name == EMBEDDED:
        _serve_meanwhile(path.parent, config)
    return _with_keys(config, run, _sha256(asked.spec_sha256 or known))


def _serve_meanwhile(directory: Path, config: StorageConfig) -> None:
    """Run the folder's own storage server until this process ends, when nothing runs it now.

    The folder is held meanwhile. Where `brigade up` holds it, its server is merely being started again: not our task.
    """
    port = urlsplit(config.endpoint).port
    if port is None or not is_free(port):
        return
    held = ExitStack()
    try:
        held.enter_context(locked(Folder(directory.absolute().parent)))
    except Busy:
        return
    atexit.register(held.close)
    server = SeaweedServer(directory.absolute(), bucket=config.bucket)
    server.start(die_with_parent=True)
    atexit.register(server.stop)


def _with_keys(config: StorageConfig, run: str, spec_sha256: Sha256 | None) -> Place:
    store = S3Store(config)
    return Place(run, StoreReader(store), store, spec_sha256, _place_of(config))


def _place_of(config: StorageConfig) -> BucketPlace:
    return BucketPlace(config.endpoint, config.bucket, config.prefix)


def netuid_of(path: Path) -> int | None:
    """The subnet of a folder's run, as its ``run.json`` tells; None when it does not."""
    netuid = _run_json(path).get("netuid")
    return netuid if isinstance(netuid, int) else None


def _run_file(path: Path) -> dict[str, str]:
    """The texts in a folder's ``run.json``; empty when there is none."""
    return {name: value for name, value in _run_json(path).items() if isinstance(value, str)}


def _run_json(path: Path) -> dict[str, object]:
    try:
        with path.open("rb") as file:
            values = json.loads(file.read(MAX_RUN_FILE_BYTES))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise OperatorError(f"{path} can't be read ({error}): give --run NAME") from error
    if not isinstance(values, dict):
        raise OperatorError(f"{path} does not describe a run: give --run NAME")
    return values


def _sha256(text: str | None) -> Sha256 | None:
    if text is not None and not is_sha256(text):
        raise OperatorError("a spec's hash is 64 lowercase hex digits")
    return None if text is None else Sha256(text)
