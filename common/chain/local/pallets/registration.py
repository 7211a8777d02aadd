"""Subnets and seats: create and start a subnet, register hotkeys by burning.

The order of checks and the error names follow subtensor. Prices stay where they are: the burn doesn't float, and a
full subnet refuses instead of pruning (both belong to a later form).
"""

from __future__ import annotations

from typing import Any

from common.chain.local.dispatch import Context, call
from common.chain.local.pallets.balances import withdraw
from common.chain.local.state import MutableState

ROOT = 0
PER_UID_VECTORS: dict[str, Any] = {
    "Active": True,
    "Consensus": 0,
    "Incentive": 0,
    "Dividends": 0,
    "Emission": 0,
    "ValidatorTrust": 0,
    "ValidatorPermit": False,
}


def add_subnet(state: MutableState, netuid: int, tempo: int) -> None:
    """An empty subnet with the settings of a new one."""
    for item, value in {"NetworksAdded": True, "Tempo": tempo, "MinAllowedWeights": 1}.items():
        state.put(item, netuid, value=value)
    for item in ("NetworkRegisteredAt", "LastEpochBlock", "LastMechansimStepBlock"):
        state.put(item, netuid, value=state.block)
    state.put("TokenSymbol", netuid, value=("τ" if netuid == ROOT else "α").encode())
    state.add("TotalNetworks", delta=1)


def add_neuron(state: MutableState, netuid: int, hotkey: str) -> int:
    """Give ``hotkey`` the next seat."""
    uid: int = state.get("SubnetworkN", netuid)
    state.put("SubnetworkN", netuid, value=uid + 1)
    state.put("Uids", netuid, hotkey, value=uid)
    state.put("Keys", netuid, uid, value=hotkey)
    state.put("BlockAtRegistration", netuid, uid, value=state.block)
    state.put("IsNetworkMember", hotkey, netuid, value=True)
    for item, value in {**PER_UID_VECTORS, "LastUpdate": state.block}.items():
        state.put(item, netuid, value=[*state.get(item, netuid), value])
    return uid


def _claim_hotkey(ctx: Context, hotkey: str, coldkey: str) -> None:
    """Make ``coldkey`` the owner of ``hotkey``; fails if another one is."""
    owned = ctx.state.get("OwnedHotkeys", coldkey)
    if ctx.state.source.read(ctx.state.runtime.key("SubtensorModule", "Owner", (hotkey,))) is None:
        ctx.state.put("Owner", hotkey, value=coldkey)
        ctx.state.put("OwnedHotkeys", coldkey, value=[*owned, hotkey])
    elif ctx.state.get("Owner", hotkey) != coldkey:
        raise ctx.fail("NonAssociatedColdKey")


@call("SubtensorModule", "register_network")
def register_network(ctx: Context, hotkey: str) -> None:
    """Create a subnet; its owner's hotkey takes uid 0."""
    state, coldkey = ctx.state, ctx.signer()
    netuid = next(n for n in range(1, 1 << 16) if not state.get("NetworksAdded", n))
    if state.get("TotalNetworks") > state.get("SubnetLimit"):
        raise ctx.fail("SubnetLimitReached")
    price = state.get("NetworkMinLockCost")
    withdraw(ctx, coldkey, price, ctx.fail("CannotAffordLockCost"))
    _claim_hotkey(ctx, hotkey, coldkey)
    add_subnet(state, netuid, state.runtime.decode_item("SubtensorModule", "Tempo", None))
    for item, value in {"SubnetOwner": coldkey, "SubnetOwnerHotkey": hotkey, "SubnetLocked": price}.items():
        state.put(item, netuid, value=value)
    for item in ("SubnetTAO", "SubnetAlphaIn"):
        state.put(item, netuid, value=price)
    add_neuron(state, netuid, hotkey)
    ctx.emit("NetworkAdded", (netuid, 1))


@call("SubtensorModule", "start_call")
def start_call(ctx: Context, netuid: int) -> None:
    """Open the subnet for stake; its owner only, once."""
    state, coldkey = ctx.state, ctx.signer()
    if not state.get("NetworksAdded", netuid):
        raise ctx.fail("SubnetNotExists")
    if state.get("SubnetOwner", netuid) != coldkey:
        raise ctx.fail("NotSubnetOwner")
    if state.get("FirstEmissionBlockNumber", netuid) is not None:
        raise ctx.fail("FirstEmissionBlockNumberAlreadySet")
    if ctx.block < state.get("NetworkRegisteredAt", netuid) + state.get("StartCallDelay"):
        raise ctx.fail("NeedWaitingMoreBlocksToStarCall")
    state.put("FirstEmissionBlockNumber", netuid, value=ctx.block + 1)
    state.put("SubtokenEnabled", netuid, value=True)
    ctx.emit("FirstEmissionBlockNumberSet", (netuid, ctx.block + 1))


@call("SubtensorModule", "burned_register", "register_limit")
def burned_register(ctx: Context, netuid: int, hotkey: str, limit_price: int | None = None) -> None:
    """Register ``hotkey`` for the subnet's price, which is burned."""
    state, coldkey = ctx.state, ctx.signer()
    if netuid == ROOT:
        raise ctx.fail("RegistrationNotPermittedOnRootSubnet")
    if not state.get("NetworksAdded", netuid):
        raise ctx.fail("SubnetNotExists")
    if not state.get("NetworkRegistrationAllowed", netuid):
        raise ctx.fail("SubNetRegistrationDisabled")
    if state.uid_of(netuid, hotkey) is not None:
        raise ctx.fail("HotKeyAlreadyRegisteredInSubNet")
    if state.get("SubnetworkN", netuid) >= state.get("MaxAllowedUids", netuid):
        raise ctx.fail("NoNeuronIdAvailable")
    price = state.get("Burn", netuid)
    if limit_price is not None and price > limit_price:
        raise ctx.fail("RegistrationPriceLimitExceeded")
    withdraw(ctx, coldkey, price, ctx.fail("NotEnoughBalanceToStake"))
    _claim_hotkey(ctx, hotkey, coldkey)
    uid = add_neuron(state, netuid, hotkey)
    state.add("RAORecycledForRegistration", netuid, delta=price)
    ctx.emit("NeuronRegistered", (netuid, uid, hotkey))
