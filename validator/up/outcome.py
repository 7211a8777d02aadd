"""What a run came to, read from the bucket and the chain. The figures themselves are made in ``summary.py``."""

from __future__ import annotations

from common.chain.port import ChainPort, Metagraph
from common.model.shards import parameter_count
from common.runlog.reader import LogReader
from common.spec import RunSpec
from common.store.port import ObjectStore
from common.store.reader import StoreReader
from common.units import Hotkey, Uid
from validator.scoring.reports import read_reports
from validator.up.bootstrap import ask
from validator.up.merged import merged_members
from validator.up.summary import Summary, summarise


def read_outcome(
    store: ObjectStore, chain: ChainPort, spec: RunSpec, validator: Hotkey, miners: list[Hotkey], load_average: float
) -> Summary:
    """The summary of the run as bucket and chain hold it now. Raises ``Retryable`` when either stays away."""
    steps = list(LogReader(StoreReader(store), spec).steps())
    metagraph, weights = ask(chain, lambda port: _facts(port, spec.netuid))
    own = metagraph.by_hotkey(validator)
    uids = {hotkey: seat.uid for hotkey in miners if (seat := metagraph.by_hotkey(hotkey)) is not None}
    return summarise(
        steps[-1].state,
        merged_members(steps),
        read_reports(store, spec, validator),
        uids,
        weights.get(own.uid, {}) if own else {},
        4 * parameter_count(spec.model),
        load_average,
    )


async def _facts(chain: ChainPort, netuid: int) -> tuple[Metagraph, dict[Uid, dict[Uid, int]]]:
    return await chain.metagraph(netuid), await chain.weights(netuid)
