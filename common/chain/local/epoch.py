"""The epoch of a subnet, first form: who may validate, and who earned what.

Permits go to the hotkeys with the most stake, up to ``MaxAllowedValidators``, none without stake. The incentive is
the mean of the permitted validators' weights, each scaled to sum 1, weighted by stake; dividends go by stake among
the validators that set weights. Bonds, clipping to consensus and liquid alpha (the rest of Yuma) are not computed,
and no emission is paid.
"""

from __future__ import annotations

from common.chain.local.state import MutableState
from common.chain.weights import U16_MAX


def run_due_epochs(state: MutableState) -> None:
    """Run the epoch of every subnet whose time has come."""
    for netuid in list(state.netuids()):
        tempo = state.get("Tempo", netuid)
        if netuid and tempo and state.block >= state.next_epoch_block(netuid):
            run_epoch(state, netuid)


def run_epoch(state: MutableState, netuid: int) -> None:
    """Recompute permits and scores; every write is a function of the state alone."""
    size = state.get("SubnetworkN", netuid)
    stakes = [state.stake_rao(netuid, state.get("Keys", netuid, uid)) for uid in range(size)]
    permits = _permits(stakes, state.get("MaxAllowedValidators", netuid))
    cutoff = state.block - state.get("ActivityCutoff", netuid)
    active = [update >= cutoff for update in state.get("LastUpdate", netuid)]
    rows = {uid: _row(state, netuid, uid, size) for uid in range(size) if permits[uid] and active[uid]}
    voters = {uid: row for uid, row in rows.items() if sum(row)}
    incentive = [sum(stakes[uid] * row[j] / sum(row) for uid, row in sorted(voters.items())) for j in range(size)]
    state.put("ValidatorPermit", netuid, value=permits)
    state.put("Active", netuid, value=active)
    state.put("StakeWeight", netuid, value=_shares(stakes, max(stakes, default=0)))
    for item in ("Incentive", "Consensus"):
        state.put(item, netuid, value=_shares(incentive, sum(incentive)))
    dividends = [stakes[uid] if uid in voters else 0 for uid in range(size)]
    state.put("Dividends", netuid, value=_shares(dividends, sum(dividends)))
    for item in ("LastEpochBlock", "LastMechansimStepBlock"):
        state.put(item, netuid, value=state.block)
    state.add("SubnetEpochIndex", netuid, delta=1)


def _permits(stakes: list[int], count: int) -> list[bool]:
    ranked = sorted((uid for uid, stake in enumerate(stakes) if stake), key=lambda uid: (-stakes[uid], uid))
    chosen = set(ranked[:count])
    return [uid in chosen for uid in range(len(stakes))]


def _row(state: MutableState, netuid: int, uid: int, size: int) -> list[int]:
    """A validator's weights by uid; its weight on itself doesn't count."""
    row = [0] * size
    for dest, value in state.get("Weights", netuid, uid):
        if dest < size and dest != uid:
            row[dest] = value
    return row


def _shares(values: list[float] | list[int], whole: float) -> list[int]:
    """Each value as a u16 fraction of ``whole``, rounded down."""
    return [int(value * U16_MAX / whole) if whole else 0 for value in values]
