"""Sudo, batches and the subnet settings of AdminUtils."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from common.chain.local.dispatch import HANDLERS, Context, DispatchFailed, call


@dataclass(frozen=True)
class Setting:
    """An AdminUtils call that stores one argument: where, and whether the subnet's owner may send it too."""

    item: str
    argument: str
    owner_may: bool = False
    per_subnet: bool = True


SETTINGS = {
    "sudo_set_tempo": Setting("Tempo", "tempo"),
    "sudo_set_weights_set_rate_limit": Setting("WeightsSetRateLimit", "weights_set_rate_limit"),
    "sudo_set_commit_reveal_weights_enabled": Setting("CommitRevealWeightsEnabled", "enabled", owner_may=True),
    "sudo_set_commit_reveal_weights_interval": Setting("RevealPeriodEpochs", "interval", owner_may=True),
    "sudo_set_serving_rate_limit": Setting("ServingRateLimit", "serving_rate_limit", owner_may=True),
    "sudo_set_weights_version_key": Setting("WeightsVersionKey", "weights_version_key", owner_may=True),
    "sudo_set_min_allowed_weights": Setting("MinAllowedWeights", "min_allowed_weights", owner_may=True),
    "sudo_set_immunity_period": Setting("ImmunityPeriod", "immunity_period", owner_may=True),
    "sudo_set_activity_cutoff": Setting("ActivityCutoff", "activity_cutoff", owner_may=True),
    "sudo_set_max_allowed_uids": Setting("MaxAllowedUids", "max_allowed_uids"),
    "sudo_set_max_allowed_validators": Setting("MaxAllowedValidators", "max_allowed_validators"),
    "sudo_set_network_registration_allowed": Setting("NetworkRegistrationAllowed", "registration_allowed"),
    "sudo_set_min_burn": Setting("MinBurn", "min_burn", owner_may=True),
    "sudo_set_max_burn": Setting("MaxBurn", "max_burn", owner_may=True),
    "sudo_set_kappa": Setting("Kappa", "kappa"),
    "sudo_set_max_registrations_per_block": Setting("MaxRegistrationsPerBlock", "max_registrations_per_block"),
    "sudo_set_target_registrations_per_interval": Setting(
        "TargetRegistrationsPerInterval", "target_registrations_per_interval"
    ),
    "sudo_set_stake_threshold": Setting("StakeThreshold", "min_stake", per_subnet=False),
    "sudo_set_nominator_min_required_stake": Setting("NominatorMinRequiredStake", "min_stake", per_subnet=False),
    "sudo_set_network_rate_limit": Setting("NetworkRateLimit", "rate_limit", per_subnet=False),
    "sudo_set_network_min_lock_cost": Setting("NetworkMinLockCost", "lock_cost", per_subnet=False),
    "sudo_set_tx_rate_limit": Setting("TxRateLimit", "tx_rate_limit", per_subnet=False),
    "sudo_set_start_call_delay": Setting("StartCallDelay", "delay", per_subnet=False),
}


def _apply(ctx: Context, setting: Setting, arguments: dict[str, Any]) -> None:
    """Store one setting, if the caller may."""
    netuid = arguments.get("netuid")
    owner_calls = setting.owner_may and ctx.origin is not None and ctx.state.get("SubnetOwner", netuid) == ctx.origin
    if not owner_calls:
        ctx.require_root()
    if setting.per_subnet and not ctx.state.get("NetworksAdded", netuid):
        raise ctx.fail("AdminUtils.SubnetDoesNotExist")
    params = (netuid,) if setting.per_subnet else ()
    ctx.state.put(setting.item, *params, value=arguments[setting.argument])


for _name, _setting in SETTINGS.items():
    HANDLERS["AdminUtils", _name] = lambda ctx, _setting=_setting, **arguments: _apply(ctx, _setting, arguments)


@call("Sudo", "sudo")
def sudo(ctx: Context, call: dict[str, Any]) -> None:
    """Dispatch as root; the failure of the inner call is told in the event, as on the real chain."""
    if ctx.signer() != ctx.state.get("Sudo.Key"):
        raise ctx.fail("Sudo.RequireSudo")
    try:
        ctx.nested(call, None)
    except DispatchFailed as failure:
        ctx.emit("Sudo.Sudid", {"sudo_result": {"Err": failure.error}})
    else:
        ctx.emit("Sudo.Sudid", {"sudo_result": {"Ok": ()}})


@call("Utility", "batch_all")
def batch_all(ctx: Context, calls: list[dict[str, Any]]) -> None:
    """Dispatch all calls or none."""
    for inner in calls:
        ctx.nested(inner, ctx.origin)
        ctx.emit("Utility.ItemCompleted", ())
    ctx.emit("Utility.BatchCompleted", ())
