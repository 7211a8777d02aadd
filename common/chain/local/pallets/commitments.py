"""The Commitments pallet: up to three fields for every registered hotkey, with a byte budget per epoch."""

from __future__ import annotations

from typing import Any

from common.chain.local.dispatch import Context, call

MAX_FIELDS = 3
MIN_CHARGE_BYTES = 100
DEFAULT_MAX_SPACE_BYTES = 3100


@call("Commitments", "set_commitment")
def set_commitment(ctx: Context, netuid: int, info: dict[str, Any]) -> None:
    """Replace the signer's commitment on the subnet."""
    state, hotkey = ctx.state, ctx.signer()
    if state.uid_of(netuid, hotkey) is None:
        raise ctx.fail("Commitments.AccountNotAllowedCommit")
    if len(info["fields"]) > MAX_FIELDS:
        raise ctx.fail("Commitments.TooManyFieldsInCommitmentInfo")
    _charge(ctx, netuid, hotkey, sum(_size(item) for item in info["fields"]))
    record = {"deposit": 0, "block": ctx.block, "info": info}
    state.put("Commitments.CommitmentOf", netuid, hotkey, value=record)
    state.put("Commitments.LastCommitment", netuid, hotkey, value=ctx.block)
    ctx.emit("Commitments.Commitment", {"netuid": netuid, "who": hotkey})


def _charge(ctx: Context, netuid: int, hotkey: str, size_bytes: int) -> None:
    """Book the bytes on this epoch's budget; fails when it is used up."""
    epoch = ctx.state.get("SubnetEpochIndex", netuid)
    usage = ctx.state.get("Commitments.UsedSpaceOf", netuid, hotkey)
    used = usage["used_space"] if usage and usage["last_epoch"] == epoch else 0
    used += max(MIN_CHARGE_BYTES, size_bytes)
    if used > ctx.state.get("Commitments.MaxSpace"):
        raise ctx.fail("Commitments.SpaceLimitExceeded")
    ctx.state.put("Commitments.UsedSpaceOf", netuid, hotkey, value={"last_epoch": epoch, "used_space": used})


def _size(item: Any) -> int:
    """The payload bytes of one field: ``{"Raw5": "0x…"}``, a list of numbers, or a variant without any."""
    if not isinstance(item, dict):
        return 0
    value = next(iter(item.values()))
    if isinstance(value, str):
        return len(value.removeprefix("0x")) // 2
    return len(value) if isinstance(value, (list, bytes)) else 0


@call("Commitments", "set_max_space")
def set_max_space(ctx: Context, new_limit: int) -> None:
    """Sudo: the budget per hotkey and epoch."""
    ctx.require_root()
    ctx.state.put("Commitments.MaxSpace", value=new_limit)
