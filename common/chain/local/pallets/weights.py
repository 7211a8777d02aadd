"""Set weights in the plain way. The order of the checks is subtensor's, since clients learn from the first error."""

from __future__ import annotations

from common.chain.local.dispatch import Context, call
from common.chain.weights import U16_MAX, upscale

ROOT = 0


@call("SubtensorModule", "set_weights")
def set_weights(ctx: Context, netuid: int, dests: list[int], weights: list[int], version_key: int) -> None:
    """Replace the signer's weights, scaled so that the largest is 65535."""
    state, hotkey = ctx.state, ctx.signer()
    if state.get("CommitRevealWeightsEnabled", netuid):
        raise ctx.fail("CommitRevealEnabled")
    if netuid == ROOT:
        raise ctx.fail("CanNotSetRootNetworkWeights")
    uid = _check_sender(ctx, netuid, hotkey, dests, weights, version_key)
    _check_vector(ctx, netuid, uid, dests, weights)
    pairs = list(zip(dests, upscale(list(weights)), strict=True))
    state.put("Weights", netuid, uid, value=pairs)
    updates = state.get("LastUpdate", netuid)
    updates[uid] = ctx.block
    state.put("LastUpdate", netuid, value=updates)
    ctx.emit("WeightsSet", (netuid, uid))


@call("SubtensorModule", "set_mechanism_weights")
def set_mechanism_weights(
    ctx: Context, netuid: int, mecid: int, dests: list[int], weights: list[int], version_key: int
) -> None:
    """As ``set_weights``; a subnet here has the one mechanism 0."""
    if mecid:
        raise ctx.fail("MechanismDoesNotExist")
    set_weights(ctx, netuid, dests, weights, version_key)


def _check_sender(
    ctx: Context, netuid: int, hotkey: str, dests: list[int], weights: list[int], version_key: int
) -> int:
    """May this hotkey set weights now? Returns its uid."""
    state = ctx.state
    if len(dests) != len(weights):
        raise ctx.fail("WeightVecNotEqualSize")
    if len(dests) > state.get("SubnetworkN", netuid):
        raise ctx.fail("UidsLengthExceedUidsInSubNet")
    uid = state.uid_of(netuid, hotkey)
    if uid is None:
        raise ctx.fail("HotKeyNotRegisteredInSubNet")
    if state.stake_rao(netuid, hotkey) < state.get("StakeThreshold"):
        raise ctx.fail("NotEnoughStakeToSetWeights")
    if version_key < state.get("WeightsVersionKey", netuid):
        raise ctx.fail("IncorrectWeightVersionKey")
    last = state.get("LastUpdate", netuid)[uid]
    if last and ctx.block - last < state.get("WeightsSetRateLimit", netuid):
        raise ctx.fail("SettingWeightsTooFast")
    return uid


def _check_vector(ctx: Context, netuid: int, uid: int, dests: list[int], weights: list[int]) -> None:
    """Is this vector one that this seat may set?"""
    state = ctx.state
    self_weight = list(dests) == [uid]
    if not self_weight and not state.get("ValidatorPermit", netuid)[uid]:
        raise ctx.fail("NeuronNoValidatorPermit")
    if len(set(dests)) != len(dests):
        raise ctx.fail("DuplicateUids")
    if any(dest >= state.get("SubnetworkN", netuid) for dest in dests):
        raise ctx.fail("UidVecContainInvalidOne")
    if not self_weight and len(dests) < state.get("MinAllowedWeights", netuid):
        raise ctx.fail("WeightVecLengthIsLow")
    if not self_weight and max(weights, default=0) * U16_MAX > state.get("MaxWeightsLimit", netuid) * sum(weights):
        raise ctx.fail("MaxWeightExceeded")
