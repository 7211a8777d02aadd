"""The runtime APIs: answers computed from the state. A method that isn't here answers the zero value of its type.

A view takes the state and the decoded arguments, and returns a value of the method's output type; for a struct only
the fields that are known, the rest is zero.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from common.chain.local.pallets.registration import PER_UID_VECTORS
from common.chain.local.state import State

PAR_PRICE_RAO = 10**9  # one alpha costs one TAO here

SUBNET_FIELDS = {  # Metagraph field → storage item, one value a subnet
    "tempo": "Tempo",
    "last_step": "LastMechansimStepBlock",
    "network_registered_at": "NetworkRegisteredAt",
    "owner_hotkey": "SubnetOwnerHotkey",
    "owner_coldkey": "SubnetOwner",
    "alpha_in": "SubnetAlphaIn",
    "alpha_out": "SubnetAlphaOut",
    "tao_in": "SubnetTAO",
    "rho": "Rho",
    "kappa": "Kappa",
    "min_allowed_weights": "MinAllowedWeights",
    "max_weights_limit": "MaxWeightsLimit",
    "weights_version": "WeightsVersionKey",
    "weights_rate_limit": "WeightsSetRateLimit",
    "activity_cutoff": "ActivityCutoff",
    "max_validators": "MaxAllowedValidators",
    "num_uids": "SubnetworkN",
    "max_uids": "MaxAllowedUids",
    "burn": "Burn",
    "difficulty": "Difficulty",
    "registration_allowed": "NetworkRegistrationAllowed",
    "immunity_period": "ImmunityPeriod",
    "min_difficulty": "MinDifficulty",
    "max_difficulty": "MaxDifficulty",
    "min_burn": "MinBurn",
    "max_burn": "MaxBurn",
    "adjustment_alpha": "AdjustmentAlpha",
    "adjustment_interval": "AdjustmentInterval",
    "target_regs_per_interval": "TargetRegistrationsPerInterval",
    "max_regs_per_block": "MaxRegistrationsPerBlock",
    "serving_rate_limit": "ServingRateLimit",
    "commit_reveal_weights_enabled": "CommitRevealWeightsEnabled",
    "commit_reveal_period": "RevealPeriodEpochs",
    "liquid_alpha_enabled": "LiquidAlphaOn",
    "bonds_moving_avg": "BondsMovingAverage",
}
VECTOR_FIELDS = {  # Metagraph field → storage item, one value a seat
    "active": "Active",
    "validator_permit": "ValidatorPermit",
    "last_update": "LastUpdate",
    "emission": "Emission",
    "dividends": "Dividends",
    "incentives": "Incentive",
    "consensus": "Consensus",
}
HYPERPARAMETERS = {  # name → (kind of HyperparamValue, storage item)
    "kappa": ("U16", "Kappa"),
    "immunity_period": ("U16", "ImmunityPeriod"),
    "min_allowed_weights": ("U16", "MinAllowedWeights"),
    "max_weights_limit": ("U16", "MaxWeightsLimit"),
    "tempo": ("U16", "Tempo"),
    "weights_version": ("U64", "WeightsVersionKey"),
    "weights_rate_limit": ("U64", "WeightsSetRateLimit"),
    "activity_cutoff": ("U16", "ActivityCutoff"),
    "registration_allowed": ("Bool", "NetworkRegistrationAllowed"),
    "min_burn": ("TaoBalance", "MinBurn"),
    "max_burn": ("TaoBalance", "MaxBurn"),
    "serving_rate_limit": ("U64", "ServingRateLimit"),
    "max_validators": ("U16", "MaxAllowedValidators"),
    "commit_reveal_period": ("U64", "RevealPeriodEpochs"),
    "commit_reveal_weights_enabled": ("Bool", "CommitRevealWeightsEnabled"),
}
DYNAMIC_FIELDS = (
    *("netuid", "owner_hotkey", "owner_coldkey", "tempo", "last_step", "blocks_since_last_step"),
    *("alpha_in", "alpha_out", "tao_in", "network_registered_at"),
)


def subnet_name(netuid: int) -> list[int]:
    """A name for people, as the list of bytes that the runtime has."""
    return list(("root" if netuid == 0 else f"local {netuid}").encode())


def hotkeys(state: State, netuid: int) -> list[str]:
    """The hotkeys of a subnet by uid."""
    return [state.get("Keys", netuid, uid) for uid in range(state.get("SubnetworkN", netuid))]


def axon(state: State, netuid: int, hotkey: str) -> dict[str, int]:
    """What a hotkey published, or all zeros."""
    found: dict[str, int] | None = state.get("Axons", netuid, hotkey)
    blank: dict[str, int] = state.runtime.blank(state.runtime.entry("SubtensorModule", "Axons").value_type)
    return found or blank


def metagraph(state: State, netuid: int) -> dict[str, Any] | None:
    """Everything about a subnet and its seats; None when it doesn't exist."""
    if not state.get("NetworksAdded", netuid):
        return None
    seats = hotkeys(state, netuid)
    fields = {name: state.get(item, netuid) for name, item in {**SUBNET_FIELDS, **VECTOR_FIELDS}.items()}
    stakes = {
        "alpha_stake": [state.get("TotalHotkeyAlpha", hotkey, netuid) for hotkey in seats],
        "tao_stake": [state.get("TotalHotkeyAlpha", hotkey, 0) for hotkey in seats],
        "total_stake": [state.stake_rao(netuid, hotkey) for hotkey in seats],
    }
    registered = [state.get("BlockAtRegistration", netuid, uid) for uid in range(len(seats))]
    seated = {
        "netuid": netuid,
        "name": subnet_name(netuid),
        "symbol": list(bytes_of(state.get("TokenSymbol", netuid))),
        "block": state.block,
        "blocks_since_last_step": state.block - state.get("LastEpochBlock", netuid),
        "hotkeys": seats,
        "coldkeys": [state.get("Owner", hotkey) for hotkey in seats],
        "identities": [None] * len(seats),
        "axons": [axon(state, netuid, hotkey) for hotkey in seats],
        "block_at_registration": registered,
        "pruning_score": [0] * len(seats),
        "trust": [0] * len(seats),
        "rank": [0] * len(seats),
    }
    return fields | stakes | seated


def bytes_of(value: Any) -> bytes:
    """A ``Vec<u8>`` as the codec gives it: text when it is UTF-8, hex or a list otherwise."""
    if isinstance(value, str):
        return bytes.fromhex(value[2:]) if value.startswith("0x") else value.encode()
    return bytes(value)


def dynamic_info(state: State, netuid: int) -> dict[str, Any] | None:
    """The subnet's pool and schedule; None when it doesn't exist."""
    graph = metagraph(state, netuid)
    if graph is None:
        return None
    return {name: graph[name] for name in DYNAMIC_FIELDS} | {
        "subnet_name": graph["name"],
        "token_symbol": graph["symbol"],
    }


def neuron(state: State, netuid: int, uid: int, with_weights: bool) -> dict[str, Any]:
    """One seat as ``NeuronInfo`` (with weights) or ``NeuronInfoLite``."""
    hotkey = state.get("Keys", netuid, uid)
    coldkey = state.get("Owner", hotkey)
    columns = {name.lower(): state.get(name, netuid)[uid] for name in PER_UID_VECTORS if name != "ValidatorTrust"}
    columns["validator_permit"] = columns.pop("validatorpermit")
    identity = {"hotkey": hotkey, "coldkey": coldkey, "uid": uid, "netuid": netuid}
    published = {
        "axon_info": axon(state, netuid, hotkey),
        "stake": [(coldkey, state.stake_rao(netuid, hotkey))],
        "last_update": state.get("LastUpdate", netuid)[uid],
    }
    info = columns | identity | published
    return info | {"weights": state.get("Weights", netuid, uid), "bonds": []} if with_weights else info


def neurons(state: State, netuid: int, with_weights: bool) -> list[dict[str, Any]]:
    """All seats."""
    return [neuron(state, netuid, uid, with_weights) for uid in range(state.get("SubnetworkN", netuid))]


def hyperparameters(state: State, netuid: int) -> list[dict[str, Any]] | None:
    """The settings as tagged values."""
    if not state.get("NetworksAdded", netuid):
        return None
    return [
        {"name": name.encode(), "value": {kind: state.get(item, netuid)}}
        for name, (kind, item) in HYPERPARAMETERS.items()
    ]


def stakes_of(state: State, coldkey: str) -> list[dict[str, Any]]:
    """All stakes of a coldkey."""
    pairs = [(hotkey, netuid) for hotkey in state.get("StakingHotkeys", coldkey) for netuid in state.netuids()]
    found = [stake_of(state, hotkey, coldkey, netuid) for hotkey, netuid in pairs]
    return [stake for stake in found if stake["stake"]]


def stake_of(state: State, hotkey: str, coldkey: str, netuid: int) -> dict[str, Any]:
    """One stake, zero included."""
    return {
        "hotkey": hotkey,
        "coldkey": coldkey,
        "netuid": netuid,
        "stake": state.get("AlphaV2", hotkey, coldkey, netuid)["mantissa"],
        "is_registered": state.uid_of(netuid, hotkey) is not None,
    }


def next_epoch(state: State, netuid: int) -> int | None:
    """The block of the next epoch; None for a subnet that never has one."""
    return state.next_epoch_block(netuid) if state.get("Tempo", netuid) else None


View = Callable[..., Any]
VIEWS: dict[str, View] = {
    "AccountNonceApi_account_nonce": lambda state, account: state.get("System.Account", account)["nonce"],
    "NeuronInfoRuntimeApi_get_neuron": lambda state, netuid, uid: neuron(state, netuid, uid, True),
    "NeuronInfoRuntimeApi_get_neuron_lite": lambda state, netuid, uid: neuron(state, netuid, uid, False),
    "NeuronInfoRuntimeApi_get_neurons": lambda state, netuid: neurons(state, netuid, True),
    "NeuronInfoRuntimeApi_get_neurons_lite": lambda state, netuid: neurons(state, netuid, False),
    "StakeInfoRuntimeApi_get_stake_info_for_coldkey": stakes_of,
    "StakeInfoRuntimeApi_get_stake_info_for_coldkeys": lambda state, keys: [(k, stakes_of(state, k)) for k in keys],
    "StakeInfoRuntimeApi_get_stake_info_for_hotkey_coldkey_netuid": stake_of,
    "SubnetInfoRuntimeApi_get_all_dynamic_info": lambda state: [dynamic_info(state, n) for n in state.netuids()],
    "SubnetInfoRuntimeApi_get_all_metagraphs": lambda state: [metagraph(state, n) for n in state.netuids()],
    "SubnetInfoRuntimeApi_get_dynamic_info": dynamic_info,
    "SubnetInfoRuntimeApi_get_metagraph": metagraph,
    "SubnetInfoRuntimeApi_get_next_epoch_start_block": next_epoch,
    "SubnetInfoRuntimeApi_get_selective_metagraph": lambda state, netuid, _fields: metagraph(state, netuid),
    "SubnetInfoRuntimeApi_get_subnet_hyperparams_v3": hyperparameters,
    "SubnetInfoRuntimeApi_get_subnet_state": metagraph,
    "SubnetRegistrationRuntimeApi_get_network_registration_cost": lambda state: state.get("NetworkMinLockCost"),
    "SwapRuntimeApi_current_alpha_price": lambda state, netuid: PAR_PRICE_RAO,
    "SwapRuntimeApi_current_alpha_price_all": lambda state: [
        {"netuid": netuid, "price": PAR_PRICE_RAO} for netuid in state.netuids()
    ],
}


def answer(state: State, method: str, arguments: bytes) -> bytes | None:
    """The encoded result of a runtime API call; None for a method that the runtime doesn't have.

    Raises ``ValueError`` for arguments that don't decode.
    """
    runtime = state.runtime
    api = runtime.apis.get(method)
    if api is None:
        return None
    view = VIEWS.get(method)
    if view is None:
        return runtime.blank_bytes(int(api.output.removeprefix("scale_info::")))
    values = runtime.decode_tuple(api.inputs, arguments)
    return runtime.encode(api.output, runtime.complete(api.output, view(state, *values)))
