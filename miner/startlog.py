"""The log that a miner starts from: replayed whole, and compared with the heads that validators committed on chain.

A log that ends before such a head, or has something else there, is not trained on: a read that was merely stale heals,
and anything else is for the owner to look at. Only heads of those who may lead count, so that no stranger, and nobody
whom the owner has left out, can keep miners from starting.
"""

from __future__ import annotations

from functools import partial

from common.blocking import in_thread
from common.chain.heads import read_heads
from common.chain.port import ChainPort
from common.errors import Retryable
from common.runlog.headproof import contradiction
from common.runlog.reader import LogReader
from common.runlog.state import RunState
from common.units import Hotkey, Sha256, sha256_hex
from miner.follow import LogView, catch_up


async def first_view(log: LogReader, hotkey: Hotkey, chain: ChainPort, netuid: int) -> LogView:
    """The view after the last slot. Raises ``Retryable`` while it contradicts a head, and as chain and log do."""
    before = await in_thread(lambda: catch_up(log, hotkey, None))
    heads = await read_heads(chain, netuid, before.state.run, before.state.validators)
    view = await in_thread(lambda: catch_up(log, hotkey, before))  # heads may be newer than what was read before them
    for committer, head in sorted(heads.items()):
        found = await in_thread(partial(_hash_of, log, view.state, head.seq))
        why = contradiction(view.state.run, committer, head, found)
        if why:
            raise Retryable(why)
    return view


def _hash_of(log: LogReader, state: RunState, seq: int) -> Sha256 | None:
    """The hash of a slot, None when the log ends before it. Blocking."""
    if seq >= state.next_seq - 1:
        return state.head_sha256 if seq == state.next_seq - 1 else None
    slot = log.read_slot(seq)
    return None if slot is None else sha256_hex(slot)
