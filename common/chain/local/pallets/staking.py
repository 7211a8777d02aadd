"""Stake on hotkeys. First form: one TAO buys one alpha and gives one back; there is no pool to move a price."""

from __future__ import annotations

from common.chain.local.dispatch import Context, call
from common.chain.local.pallets.balances import credit, withdraw

MIN_STAKE_RAO = 2_000_000


def _check_subnet(ctx: Context, netuid: int, hotkey: str) -> None:
    state = ctx.state
    if not state.get("NetworksAdded", netuid):
        raise ctx.fail("SubnetNotExists")
    if netuid and not state.get("SubtokenEnabled", netuid):
        raise ctx.fail("SubtokenDisabled")
    if state.source.read(state.runtime.key("SubtensorModule", "Owner", (hotkey,))) is None:
        raise ctx.fail("HotKeyAccountNotExists")


def _move(ctx: Context, coldkey: str, hotkey: str, netuid: int, delta_rao: int) -> None:
    """Change the books of a stake by ``delta_rao``."""
    state = ctx.state
    share = state.get("AlphaV2", hotkey, coldkey, netuid)["mantissa"] + delta_rao
    state.put("AlphaV2", hotkey, coldkey, netuid, value={"mantissa": share, "exponent": 0})
    total = state.get("TotalHotkeySharesV2", hotkey, netuid)["mantissa"] + delta_rao
    state.put("TotalHotkeySharesV2", hotkey, netuid, value={"mantissa": total, "exponent": 0})
    state.add("TotalHotkeyAlpha", hotkey, netuid, delta=delta_rao)
    state.add("SubnetTAO", netuid, delta=delta_rao)
    state.add("SubnetAlphaOut", netuid, delta=delta_rao)
    state.add("TotalStake", delta=delta_rao)
    known = state.get("StakingHotkeys", coldkey)
    if hotkey not in known:
        state.put("StakingHotkeys", coldkey, value=[*known, hotkey])


@call("SubtensorModule", "add_stake")
def add_stake(ctx: Context, hotkey: str, netuid: int, amount_staked: int) -> None:
    """Stake free TAO of the signer on ``hotkey``."""
    coldkey = ctx.signer()
    _check_subnet(ctx, netuid, hotkey)
    if amount_staked < MIN_STAKE_RAO:
        raise ctx.fail("AmountTooLow")
    withdraw(ctx, coldkey, amount_staked, ctx.fail("NotEnoughBalanceToStake"))
    _move(ctx, coldkey, hotkey, netuid, amount_staked)
    ctx.emit("StakeAdded", (coldkey, hotkey, amount_staked, amount_staked, netuid, 0))


@call("SubtensorModule", "add_stake_limit")
def add_stake_limit(
    ctx: Context, hotkey: str, netuid: int, amount_staked: int, limit_price: int, allow_partial: bool
) -> None:
    """As ``add_stake``: at par no limit is ever reached."""
    del limit_price, allow_partial
    add_stake(ctx, hotkey, netuid, amount_staked)


@call("SubtensorModule", "remove_stake")
def remove_stake(ctx: Context, hotkey: str, netuid: int, amount_unstaked: int) -> None:
    """Take stake back as free TAO."""
    coldkey = ctx.signer()
    _check_subnet(ctx, netuid, hotkey)
    if ctx.state.get("AlphaV2", hotkey, coldkey, netuid)["mantissa"] < amount_unstaked:
        raise ctx.fail("NotEnoughStakeToWithdraw")
    _move(ctx, coldkey, hotkey, netuid, -amount_unstaked)
    credit(ctx.state, coldkey, amount_unstaked)
    ctx.emit("StakeRemoved", (coldkey, hotkey, amount_unstaked, amount_unstaked, netuid, 0))
