"""What a run came to, read from the bucket and the chain. The figures themselves are made in ``summary.py``."""

from __future__ import annotations

from loguru import logger

from common import keys
from common.chain.port import ChainPort, Metagraph
from common.errors import Rejected
from common.model.shards import parameter_count
from common.reports import MAX_REPORT_BYTES, Report, decode_report
from common.runlog.reader import LogReader
from common.spec import RunSpec
from common.store.port import ObjectStore
from common.store.reader import StoreReader
from common.units import Hotkey, Uid
from validator.up.bootstrap import ask
from validator.up.summary import Summary, merged_members, summarise


def read_reports(store: ObjectStore, run: str, validator: Hotkey) -> list[Report]:
    """A validator's reports by round, the newest where a round has several."""
    found: dict[int, tuple[float, Report]] = {}
    for info in store.list(keys.reports_prefix(run, validator)):
        try:
            report, record = decode_report(store.get(info.key, max_bytes=MAX_REPORT_BYTES).body, run)
        except Rejected as error:
            logger.warning("{} is no report: {}", info.key, error)
            continue
        newest = found.get(report.round)
        if record.signer == validator and (newest is None or info.modified_s >= newest[0]):
            found[report.round] = (info.modified_s, report)
    return [report for _, (_, report) in sorted(found.items())]


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
        read_reports(store, spec.run, validator),
        uids,
        weights.get(own.uid, {}) if own else {},
        4 * parameter_count(spec.model),
        load_average,
    )


async def _facts(chain: ChainPort, netuid: int) -> tuple[Metagraph, dict[Uid, dict[Uid, int]]]:
    return await chain.metagraph(netuid), await chain.weights(netuid)
