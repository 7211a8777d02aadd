"""``brigade run leaders``: the owner says who may lead from here on, by an entry of its own in the run's log.

It needs no leader: it works when those who may lead are gone, or lie. A leader that is no longer named steps down when
it reads the entry; whoever is newly named may lead without a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from common import options
from common.chain.wallets import open_wallet
from common.clock import SystemClock
from common.errors import OperatorError
from common.identity import KeypairSigner, Signer
from common.runlog.entries import LeadersChanged
from common.runlog.owned import leaders_problem
from common.runlog.owner import append_owned
from common.runlog.reader import Here, nowhere
from common.runlog.state import RunState
from common.runlog.writer import LogWriter
from common.spec import RunSpec
from common.store.port import ObjectStore
from common.units import Hotkey
from validator.run_place import DEFAULT_FOLDER, Asked, find


def leaders(
    asked: Asked,
    validator: Annotated[
        list[str], typer.Option(envvar="BRIGADE_VALIDATORS", help="Hotkey (SS58) that may lead; may be repeated.")
    ],
    wallet_path: options.WalletPath = None,
    wallet: options.WalletName = "owner",
    hotkey: options.HotkeyName = "default",
) -> None:
    """Say who may lead from here on: the hotkeys given, and nobody else. Signed by the run's owner."""
    place = find(asked)
    spec = place.spec()
    owner = owner_of(asked, spec, wallet_path, wallet, hotkey)
    named = [Hotkey(one) for one in validator]
    change_leaders(place.listing_store(), place.log().catch_up(), owner, named, typer.echo, lambda: place.at)


def change_leaders(
    store: ObjectStore,
    state: RunState,
    owner: Signer,
    validators: Sequence[Hotkey],
    say: Callable[[str], None],
    here: Here = nowhere,
) -> RunState:
    """Append the owner's entry; the state after it. Raises OperatorError for a set that makes no sense."""
    data = LeadersChanged(tuple(sorted(validators)))
    problem = leaders_problem(state, data)
    if problem:
        raise OperatorError(f"--validator: {problem}")
    say(f"may lead so far: {', '.join(state.validators)}")
    writer = LogWriter(store, state.spec, owner, SystemClock(), here=here)
    after = append_owned(writer, state, data, "the owner says who may lead")
    say(f"may lead from slot {after.next_seq - 1} on: {', '.join(after.validators)}")
    return after


def owner_folder(asked: Asked, wallet_path: Path | None) -> Path:
    """Where the owner's wallet is: as told, or in the folder of the run."""
    return wallet_path or (asked.folder or DEFAULT_FOLDER) / "wallets"


def owner_of(asked: Asked, spec: RunSpec, wallet_path: options.WalletPath, wallet: str, hotkey: str) -> KeypairSigner:
    """The owner's hotkey, which signs; from the folder's wallets unless told. Raises OperatorError for another's."""
    owner = KeypairSigner(open_wallet(owner_folder(asked, wallet_path), wallet, hotkey).hotkey)
    if owner.hotkey != spec.owner:
        raise OperatorError(f"run {spec.run} belongs to {spec.owner}, and this is {owner.hotkey}: give --wallet-path")
    return owner
