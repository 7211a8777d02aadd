"""From a subnet's number to its run: owner hotkey → that hotkey's commitment → where the run lives."""

from __future__ import annotations

from common.chain import commitment
from common.chain.commitment import RunLocation
from common.chain.port import ChainPort
from common.errors import Retryable
from common.keys import public_base_url


async def find_run(chain: ChainPort, netuid: int) -> RunLocation:
    """The run that the subnet's owner committed.

    Raises ``Retryable`` while the chain is away or nothing is committed yet, ``Rejected`` (``bad_commitment``, what the
    chain refuses) and ``Fatal`` as the port does.
    """
    owner = await chain.subnet_owner_hotkey(netuid)
    fields = await chain.commitment(netuid, owner)
    if not fields:
        raise Retryable(f"the owner of subnet {netuid} ({owner}) has not committed a run: `brigade run create`")
    return commitment.decode(fields)


def base_url(location: RunLocation) -> str:
    """Where the run's objects are read by plain GET: the base of every key, without a trailing slash."""
    return public_base_url(location.endpoint, location.bucket, location.prefix)
