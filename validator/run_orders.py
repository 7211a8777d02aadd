"""``brigade run pause | resume | rollback | abort-round``: orders that a run's owner signs and lays into the bucket.

Whoever leads finds them there. Each command says what it ordered and waits until the log shows that it was obeyed, or
why it never will be; an order stands also when nobody waits for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated

import typer

from common import options, timeouts
from common.clock import SystemClock
from common.errors import OperatorError, Retryable
from common.identity import SignedRecord, Signer
from common.runlog.commands import (
    abort_command,
    decode_command,
    pause_command,
    put_command,
    resume_command,
    rollback_command,
)
from common.runlog.orders import why_not
from common.runlog.state import RunState
from common.units import Revision, Sha256, printable
from validator.run_leaders import owner_of
from validator.run_place import Asked, Place, find

NoWait = Annotated[bool, typer.Option("--no-wait", envvar="BRIGADE_NO_WAIT", help="Don't wait until it is obeyed.")]
Make = Callable[[RunState, Signer, int], SignedRecord]


def pause(
    asked: Asked,
    no_wait: NoWait = False,
    wallet_path: options.WalletPath = None,
    wallet: options.WalletName = "owner",
    hotkey: options.HotkeyName = "default",
) -> None:
    """Open no further round until the run is resumed; the open one ends first. Signed by the run's owner."""
    owner = _owner(asked, wallet_path, wallet, hotkey)
    _order(find(asked), owner, pause_command, "the run pauses when the open round has ended", no_wait)


def resume(
    asked: Asked,
    no_wait: NoWait = False,
    wallet_path: options.WalletPath = None,
    wallet: options.WalletName = "owner",
    hotkey: options.HotkeyName = "default",
) -> None:
    """Let a paused run go on. Signed by the run's owner."""
    place, owner = find(asked), _owner(asked, wallet_path, wallet, hotkey)
    paused = place.log().catch_up().paused
    for fact in () if paused is None else (paused.code, *paused.evidence):
        typer.echo(f"paused: {printable(fact)}")
    _order(place, owner, resume_command, "the run goes on", no_wait)


def rollback(
    asked: Asked,
    to: Annotated[int, typer.Option(envvar="BRIGADE_TO", min=0, help="The revision to go back to.")],
    no_wait: NoWait = False,
    wallet_path: options.WalletPath = None,
    wallet: options.WalletName = "owner",
    hotkey: options.HotkeyName = "default",
) -> None:
    """Go back to an earlier revision; an open round ends, and no machine restarts. Signed by the run's owner."""
    owner = _owner(asked, wallet_path, wallet, hotkey)

    def make(state: RunState, signer: Signer, at_ms: int) -> SignedRecord:
        return rollback_command(state, signer, at_ms, Revision(to))

    _order(find(asked), owner, make, f"the run goes back to revision {to}", no_wait)


def abort_round(
    asked: Asked,
    no_wait: NoWait = False,
    wallet_path: options.WalletPath = None,
    wallet: options.WalletName = "owner",
    hotkey: options.HotkeyName = "default",
) -> None:
    """End the open round without a revision; what came whole counts in the next one. Signed by the run's owner."""
    owner = _owner(asked, wallet_path, wallet, hotkey)
    _order(find(asked), owner, abort_command, "the open round ends without a revision", no_wait)


def _owner(asked: Asked, wallet_path: options.WalletPath, wallet: str, hotkey: str) -> Signer:
    return owner_of(asked, find(asked).spec(), wallet_path, wallet, hotkey)


def _order(place: Place, owner: Signer, make: Make, what: str, no_wait: bool) -> None:
    state = place.log().catch_up()
    try:
        record = make(state, owner, SystemClock().wall_ns() // 1_000_000)
    except ValueError as error:
        raise OperatorError(f"{error}: nothing is ordered") from error
    sha256 = put_command(place.listing_store(), record)
    typer.echo(f"ordered ({sha256[:12]}…): {what}; the leader takes it up within {timeouts.COMMAND_LOOK_S:g} s")
    if not no_wait:
        _wait(place, state, record, sha256)


def _wait(place: Place, state: RunState, record: SignedRecord, sha256: Sha256) -> None:
    """Until the log shows it. OperatorError when it never will, or not for long."""
    reader, told = place.log(), ""
    command, until_s = decode_command(record.encode(), state.spec), time.monotonic() + timeouts.ORDER_WAIT_S
    while sha256 not in state.obeyed:
        objection = why_not(state, command)
        if objection:
            raise OperatorError(f"the order is passed over: {objection}; `brigade run log` tells what came before it")
        waits = (
            "the leader" if state.open_round is None else f"the leader, which has round {state.open_round.round} open"
        )
        if waits != told:
            typer.echo(f"waiting for {waits}")
            told = waits
        if time.monotonic() > until_s:
            raise OperatorError(
                f"not obeyed within {timeouts.ORDER_WAIT_S:g} s; the order stands: see `brigade status`"
            )
        time.sleep(timeouts.WAIT_POLL_S)
        try:
            state = reader.catch_up(state)
        except Retryable as fault:
            typer.echo(f"waiting for the storage: {fault}", err=True)
    typer.echo(f"obeyed: the head is revision {state.head}, the next round is {state.next_round}")
