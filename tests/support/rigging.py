"""What a ``Rig`` stands on: storage, local chain, subnet and a run of a test's own spec.

They are brought up as `brigade up` does it, with the spec left to the caller.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from common.chain.sdk import SdkChain, isolate_sdk
from common.clock import SystemClock
from common.data.corpus import folder_corpus
from common.data.prepare import prepare
from common.data.tokenizer import tokenizer_named
from common.deathsig import bound_to_parent
from common.identity import KeypairSigner
from common.spec import RunSpec
from common.store.s3 import S3Store
from common.units import Sha256
from tests.support.localrun import BRIGADE, TEXT
from tests.support.rig import SERVED_IP, Part, Rig, end
from tests.support.storage import running_server
from validator.run_create import location_of, publish, read_dataset, start_run
from validator.up.bootstrap import Wallets, ask, bootstrap, make_wallets
from validator.up.ports import choose_ports
from validator.up.supervisor import inherited

BLOCK_S = 0.1
MakeSpec = Callable[[int, Wallets, Path], RunSpec]
"""From netuid, wallets and the prepared dataset's folder."""


@contextmanager
def running(folder: Path, make_spec: MakeSpec, miners: int, validators: int = 1, cold: bool = False) -> Iterator[Rig]:
    """Storage, chain, subnet and run; validator and miners are the caller's to start. Leaves no process behind.

    ``cold``: every process imports for itself, as an operator's does, at four seconds of a core each."""
    folder.mkdir(parents=True, exist_ok=True)
    isolate_sdk(folder / "cache")
    with ExitStack() as stack:
        server, storage = stack.enter_context(running_server(folder / "storage"))
        (folder / "storage.json").write_bytes((folder / "storage" / "storage.json").read_bytes())
        wallets = make_wallets(folder / "wallets", miners, validators)
        prepare(folder_corpus(TEXT), tokenizer_named("bytes"), folder / "data")
        servers = {"chain": "127.0.0.1", **{wallet.name: SERVED_IP for wallet in wallets.validators}}
        ports = choose_ports(folder / "ports.json", servers, random.Random())
        node, url = start_chain(folder, ports["chain"], stack)
        netuid = asyncio.run(bootstrap(lambda wallet: SdkChain(url, wallet), wallets, lambda text: None))
        spec = make_spec(netuid, wallets, folder / "data")
        owner = KeypairSigner(wallets.owner.hotkey)
        start_run(S3Store(storage), spec, folder / "data", owner, SystemClock(), lambda text: None)
        location = location_of(spec, storage)
        ask(
            SdkChain(url, wallets.owner),
            lambda chain: publish(chain, netuid, owner.hotkey, location, lambda text: None),
        )
        yield Rig(folder, spec, wallets, storage, ports, stack, server, node, cold)


def start_chain(folder: Path, port: int, stack: ExitStack) -> tuple[Part, str]:
    """The local chain of this folder, and its URL, when it serves: a new one, or where the last one's disk ends."""
    command: tuple[str, ...] = (
        *BRIGADE,
        "--log-dir",
        str(folder / "logs"),
        "chain",
        "local",
        "--dir",
        str(folder / "chain"),
    )
    command += ("--cache", str(folder / "cache"), "--port", str(port), "--block-time", str(BLOCK_S))
    process = subprocess.Popen(
        bound_to_parent(command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=inherited(os.environ), text=True
    )
    stack.callback(end, process)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("chain ready: "), f"the chain did not start: {line!r}"
    return Part("chain", process), line.split()[-1]


def dataset_of(folder: Path) -> tuple[Sha256, str]:
    """Hash and tokenizer of a prepared dataset."""
    dataset, index = read_dataset(folder)
    return dataset, index.tokenizer
