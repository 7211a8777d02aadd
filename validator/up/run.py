"""Bringing a local run up: the order of things, and what may go wrong between them.

``LocalRun`` starts the servers, makes chain and run ready, and starts validator and miners; ``watch.py`` goes on from
there. The supervisor is polled while anything is waited for, and while chain and bucket are made ready, since they may
die in that time like in any other. Everything that is set up here is idempotent, so it is simply done again when a
server went away under it, and the same call after a kill goes on where the first one was.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from dataclasses import dataclass
from typing import TypeVar

from common import keys, timeouts
from common.chain.port import ChainPort
from common.chain.sdk import SdkChain
from common.chain.wallets import DevWallet, Wallet
from common.clock import Clock
from common.data.corpus import folder_corpus, stdlib_corpus
from common.data.prepare import prepare
from common.data.tokenizer import tokenizer_named
from common.defaults import make_spec
from common.errors import BrigadeError, Rejected, Retryable, SetupError
from common.identity import KeypairSigner
from common.runlog.state import RunState
from common.spec import RunSpec, spec_hash
from common.store.config import load_config
from common.store.s3 import S3Store
from common.timeouts import WAIT_POLL_S
from common.units import Revision
from validator.run_create import location_of, publish, read_dataset, start_run
from validator.up import plan
from validator.up.bootstrap import Wallets, ask, bootstrap
from validator.up.folder import RUN_NAME, SCHEMA, Begun, continue_with, load_begun, save_begun
from validator.up.plan import Place, Settings
from validator.up.ports import choose_ports
from validator.up.supervisor import Supervisor, look_after
from validator.up.table import Display

ANY_NETUID = 1
"""For a spec that is only tried."""
STORAGE_STARTS = (Retryable, SetupError, Rejected)
"""Before the bucket's policy and keys are loaded, the storage server answers as if they were wrong."""
T = TypeVar("T")


@dataclass(frozen=True)
class Ready:
    """A run whose validator and miners are at work."""

    spec: RunSpec
    wallets: Wallets
    place: Place
    store: S3Store
    state: RunState
    until: Revision | None


class LocalRun:
    """See the module. ``sleep`` is called between looks; a signal may interrupt it by raising."""

    def __init__(
        self,
        settings: Settings,
        supervisor: Supervisor,
        display: Display,
        wallets: Wallets,
        clock: Clock,
        sleep: Callable[[float], None],
        rng: random.Random,
    ) -> None:
        self._settings = settings
        self._supervisor = supervisor
        self._display = display
        self._wallets = wallets
        self._clock = clock
        self._sleep = sleep
        self._rng = rng

    def start(self) -> Ready:
        """Bring everything up. Raises SetupError when a part does not come up, naming it."""
        begun = self._begin()
        ports = choose_ports(self._settings.folder.ports, plan.SERVERS, self._rng)
        for server in plan.servers(self._settings, ports):
            self._supervisor.start(server)
        store = self._storage()
        netuid = self._chain(ports)
        place = Place(netuid, ports)
        spec, state = self._create(store, place, begun)
        known = dataclasses.replace(begun, netuid=netuid, spec_sha256=spec_hash(spec))
        save_begun(known, self._settings.folder.run)
        rounds = self._settings.rounds
        until = None if rounds is None else Revision(state.head + rounds)
        self._start_workers(place, until)
        return Ready(spec, self._wallets, place, store, state, until)

    # Bringing it up.

    def _begin(self) -> Begun:
        """What the run is begun with: new, or as an earlier start left it.

        A new run's settings are kept only once text and spec are made of them: a typing error must not stay.
        """
        how = self._settings
        data = None if how.data is None else str(how.data.absolute())
        wish = Begun(
            SCHEMA,
            RUN_NAME,
            how.preset,
            how.seed,
            how.miners,
            how.density,
            how.steps,
            data,
            how.block_time_s,
            reduce=how.reduce,
        )
        known = load_begun(how.folder.run)
        if known is not None:
            self._display.note(f"continuing the run in {how.folder.root}", event="continued")
            return continue_with(known, wish)
        self._prepare_data()
        self._make_spec(ANY_NETUID, wish)
        save_begun(wish, how.folder.run)
        return wish

    def _prepare_data(self) -> None:
        source, folder = self._settings.data, self._settings.folder.data
        self._display.note(f"preparing data from {source or 'the standard library of Python'}", event="data")
        corpus = stdlib_corpus() if source is None else folder_corpus(source)
        if folder.exists():  # of a start that was cut off before it kept its settings: maybe of another text
            shutil.rmtree(folder)
        prepare(corpus, tokenizer_named("bytes"), folder)

    def _make_spec(self, netuid: int, begun: Begun) -> RunSpec:
        dataset, index = read_dataset(self._settings.folder.data)
        choices = self._settings.choices(begun.target_miners)
        owner, validators = self._wallets.owner.hotkey_ss58, [self._wallets.validator.hotkey_ss58]
        return make_spec(choices, netuid, owner, validators, dataset, index.tokenizer)

    def _storage(self) -> S3Store:
        config_path = self._settings.folder.storage_config

        def look() -> S3Store | None:
            if not config_path.exists():
                return None
            store = S3Store(load_config(config_path))
            store.head(keys.spec_key(RUN_NAME))
            return store

        store = self._wait("the storage", look, timeouts.SERVERS_READY_S, STORAGE_STARTS)
        self._display.note("storage is ready", event="ready", part="storage")
        return store

    def _chain(self, ports: dict[str, int]) -> int:
        url = plan.chain_url(ports)

        def look() -> int:
            return ask(SdkChain(url), lambda chain: chain.block())

        self._wait("the chain", look, timeouts.SERVERS_READY_S, (Retryable,))
        self._display.note("the chain is ready", event="ready", part="chain")

        def connect(wallet: Wallet | DevWallet | None) -> ChainPort:
            return SdkChain(url, wallet)

        return self._make(
            "the subnet", lambda: asyncio.run(bootstrap(connect, self._wallets, self._display.note)), (Retryable,)
        )

    def _create(self, store: S3Store, place: Place, begun: Begun) -> tuple[RunSpec, RunState]:
        folder = self._settings.folder
        owner = KeypairSigner(self._wallets.owner.hotkey)
        spec = self._make_spec(place.netuid, begun)
        say = self._display.note
        state = self._make(
            "the run", lambda: start_run(store, spec, folder.data, owner, self._clock, say), STORAGE_STARTS
        )
        location = location_of(spec, load_config(folder.storage_config))

        def commit() -> None:
            ask(
                SdkChain(place.chain_url, self._wallets.owner),
                lambda chain: publish(chain, place.netuid, owner.hotkey, location, say),
            )

        self._make("the run's commitment", commit, (Retryable,))
        return spec, state

    def _start_workers(self, place: Place, until: Revision | None) -> None:
        threads = self._settings.threads_each(plan.cores())
        self._supervisor.start(plan.validator(self._settings, place, until, threads))
        for name in plan.miner_names(self._settings.miners):
            self._supervisor.start(plan.miner(self._settings, place, name, threads))
        self._display.note(f"validator and {self._settings.miners} miners started", event="started")

    def _make(self, what: str, work: Callable[[], T], passing: tuple[type[BrigadeError], ...]) -> T:
        """The result of an idempotent ``work``, which is done again when a server went away under it."""
        made = self._wait(what, lambda: (self._beside(work),), timeouts.SERVERS_READY_S, passing)
        return made[0]

    def _beside(self, work: Callable[[], T]) -> T:
        """Do ``work`` in a thread. Children are started from this one, the main thread, which looks after them."""
        answer: Future[T] = Future()

        def run() -> None:
            try:
                answer.set_result(work())
            except BaseException as error:  # noqa: BLE001 - handed to the caller, whatever it is
                answer.set_exception(error)

        threading.Thread(target=run, name="making", daemon=True).start()
        while not answer.done():
            wait_for([answer], WAIT_POLL_S)
            look_after(self._supervisor)
        return answer.result()

    def _wait(
        self, what: str, look: Callable[[], T | None], within_s: float, passing: tuple[type[BrigadeError], ...]
    ) -> T:
        """Look until there is something; what ``look`` raises of ``passing`` means not yet."""
        deadline_s = self._clock.monotonic_s() + within_s
        trouble = ""
        while self._clock.monotonic_s() < deadline_s:
            look_after(self._supervisor)
            try:
                found = look()
            except passing as error:
                trouble = f" ({error})"
                found = None
            if found is not None:
                return found
            self._sleep(WAIT_POLL_S)
        raise SetupError(f"{what} was not ready within {within_s:g} s{trouble}; see {self._settings.logs}")
