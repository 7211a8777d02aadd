"""Free balances and transfers. No fees, no reserves: a later form of the local chain has them."""

from __future__ import annotations

from typing import Any

from common.chain.local.dispatch import Context, DispatchFailed, call
from common.chain.local.state import MutableState, State

EXISTENTIAL_DEPOSIT_RAO = 500
FUNDS_UNAVAILABLE = {"Token": "FundsUnavailable"}


def free_rao(state: State, account: str) -> int:
    """The spendable balance."""
    free: int = state.get("System.Account", account)["data"]["free"]
    return free


def credit(state: MutableState, account: str, amount_rao: int) -> None:
    """Add to a free balance, making the account if need be."""
    record = state.get("System.Account", account)
    record["data"]["free"] += amount_rao
    record["providers"] = 1
    state.put("System.Account", account, value=record)


def withdraw(ctx: Context, account: str, amount_rao: int, error: Any) -> None:
    """Take from a free balance and keep the existential deposit; fails with ``error`` where there isn't enough."""
    record = ctx.state.get("System.Account", account)
    if record["data"]["free"] < amount_rao + EXISTENTIAL_DEPOSIT_RAO:
        raise error if isinstance(error, DispatchFailed) else DispatchFailed(error)
    record["data"]["free"] -= amount_rao
    ctx.state.put("System.Account", account, value=record)


@call("Balances", "transfer_keep_alive", "transfer_allow_death")
def transfer(ctx: Context, dest: Any, value: int) -> None:
    """Move ``value`` rao to an account given by its id; other kinds of address name nobody here."""
    source = ctx.signer()
    if not isinstance(dest, str):
        raise DispatchFailed("CannotLookup")
    withdraw(ctx, source, value, FUNDS_UNAVAILABLE)
    credit(ctx.state, dest, value)
    ctx.emit("Balances.Transfer", {"from": source, "to": dest, "amount": value})


@call("Balances", "transfer_all")
def transfer_all(ctx: Context, dest: Any, keep_alive: bool) -> None:
    """Move all but the existential deposit."""
    del keep_alive  # accounts are never reaped here
    transfer(ctx, dest, max(0, free_rao(ctx.state, ctx.signer()) - EXISTENTIAL_DEPOSIT_RAO))


@call("Balances", "force_set_balance")
def force_set_balance(ctx: Context, who: Any, new_free: int) -> None:
    """Sudo: set a free balance."""
    ctx.require_root()
    if not isinstance(who, str):
        raise DispatchFailed("CannotLookup")
    credit(ctx.state, who, new_free - free_rao(ctx.state, who))
    ctx.emit("Balances.BalanceSet", {"who": who, "free": new_free})
