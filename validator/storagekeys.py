"""The storage file of a running validator, read again whenever it changes: new keys without a restart,
and after the owner has moved the run, the new bucket.

Invariants: new keys are tried before they are used, with everything that Brigade needs of a bucket; while they fail the
old ones stay; a file that makes no sense is told once and ignored. The bucket must be the run's: its log has to hold
the very slots that this process has read.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from loguru import logger

from common import keys, timeouts
from common.blocking import in_thread
from common.chain.discovery import find_run
from common.chain.port import ChainPort
from common.errors import BrigadeError, Rejected, SetupError
from common.runlog.casput import MAX_READ_BYTES
from common.runlog.state import RunState
from common.spec import spec_hash
from common.store.config import StorageConfig, load_config
from common.store.place import BucketPlace
from common.store.port import ObjectMissing, ObjectStore
from common.store.probe import probe_bucket
from common.store.retry import NO_RETRIES
from common.store.s3 import S3Store
from common.store.switching import SwitchingStore
from common.units import Sha256, sha256_hex
from validator.journal import Journal
from validator.leadership import Leadership

MAX_FILE_BYTES = 64 * 1024
OpenStore = Callable[[StorageConfig], ObjectStore]


def open_probed(config: StorageConfig) -> ObjectStore:
    """A store that was tried with real objects. Blocking; SetupError says what is wrong with it."""
    probe_bucket(S3Store(config), secrets.token_hex(8))
    return S3Store(config, policy=NO_RETRIES)  # who calls it repeats: two layers would multiply


@dataclass(frozen=True)
class Moving:
    """What it takes to go to another bucket."""

    chain: ChainPort
    leadership: Leadership


def moved_away(state: RunState, here: BucketPlace) -> str:
    """Why nothing may be done in this bucket any more, and what an operator does about it; empty when all may."""
    if state.moved is None or not state.left(here):
        return ""
    return (
        f"the run has moved to {state.moved.target.base_url}; waiting for keys: put that bucket and its keys into the "
        "file given with --storage"
    )


class StorageKeys:
    """Watches the file of one validator."""

    def __init__(
        self,
        path: Path,
        store: SwitchingStore,
        journal: Journal,
        moving: Moving,
        open_store: OpenStore = open_probed,
    ) -> None:
        self._path = path
        self._store = store
        self._journal = journal
        self._moving = moving
        self._open = open_store
        self._used = self._content()
        self._told = ""

    async def run(self) -> None:
        """Look for ever."""
        while True:
            await asyncio.sleep(timeouts.KEYS_LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Read the file, and use what it says if that is new and right."""
        content = await in_thread(self._content)
        if content == self._used:
            return
        try:
            config = await in_thread(lambda: load_config(self._path))
            place = await self._place_of(config)
            store = await in_thread(lambda: self._try(config, self._journal.state))
        except BrigadeError as fault:  # whatever is wrong with the file or the keys, the ones in use go on
            self._say(f"{self._path} has changed, and its settings are not used: {fault}. The ones before stay in use")
            return
        moved = place != self._store.place
        self._store.use(store, place)
        self._used, self._told = content, ""
        if moved:
            # What this process knows of the open round is of the old bucket: it begins anew from the other one.
            await self._moving.leadership.leave(f"the run has moved to {place.base_url}")
        logger.bind(event="storage_keys").info("the storage's new settings in {} work: in use from now on", self._path)

    async def _place_of(self, config: StorageConfig) -> BucketPlace:
        """The place that these settings open. SetupError unless the run lives there."""
        here, state = self._store.place, self._journal.state
        named = BucketPlace(config.endpoint, config.bucket, config.prefix)
        if state.moved is not None and state.left(here):
            if named != state.moved.target:
                raise SetupError(f"they name {named.base_url}, and the run has moved to {state.moved.target.base_url}")
            return named
        # The old bucket may have been gone before we could read that the run moves: then the chain says where it is.
        if named != here and await self._is_committed(named):
            return named
        if (config.bucket, config.prefix) != (here.bucket, here.prefix):
            raise SetupError(f"they name {named.base_url}, and the run lives in {here.base_url}")
        return here  # by another address than the one that outsiders use, maybe

    async def _is_committed(self, named: BucketPlace) -> bool:
        """Whether the owner has committed on chain that the run is there. Raises as ``ChainPort``."""
        spec = self._journal.state.spec
        found = await find_run(self._moving.chain, spec.netuid)
        same_run = (found.run, found.spec_sha256) == (spec.run, spec_hash(spec))
        return same_run and BucketPlace(found.endpoint, found.bucket, found.prefix) == named

    def _try(self, config: StorageConfig, state: RunState) -> ObjectStore:
        """Blocking. Raises SetupError for keys that don't work, or a bucket that holds another log."""
        store = self._open(config)
        seq = state.next_seq - 1
        if _slot(store, state.run, seq) != state.head_sha256:
            raise SetupError(f"slot {seq} of the log of run {state.run} is not there as this process has read it")
        return store

    def _content(self) -> str:
        try:
            with self._path.open("rb") as file:
                return sha256_hex(file.read(MAX_FILE_BYTES))
        except OSError as error:
            return f"unreadable: {error.strerror}"

    def _say(self, text: str) -> None:
        """Once, until it changes."""
        if text != self._told:
            logger.warning("{}", text)
        self._told = text


def _slot(store: ObjectStore, run: str, seq: int) -> Sha256 | None:
    try:
        return sha256_hex(store.get(keys.log_key(run, seq), max_bytes=MAX_READ_BYTES).body)
    except (ObjectMissing, Rejected):
        return None
