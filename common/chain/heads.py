"""Reading the heads of a run's log that validators have committed on chain."""

from __future__ import annotations

from collections.abc import Iterable

from common.chain.headcommit import CommittedHead, of_run
from common.chain.port import ChainPort
from common.units import Hotkey


async def read_heads(chain: ChainPort, netuid: int, run: str, hotkeys: Iterable[Hotkey]) -> dict[Hotkey, CommittedHead]:
    """What each of these hotkeys has committed of this run. Raises as ``ChainPort``."""
    found = {hotkey: of_run(await chain.commitment(netuid, hotkey), run) for hotkey in sorted(set(hotkeys))}
    return {hotkey: head for hotkey, head in found.items() if head is not None}
