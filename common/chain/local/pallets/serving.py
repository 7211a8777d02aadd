"""Publish endpoints. The checks also run before inclusion: see ``pool.py``."""

from __future__ import annotations

import ipaddress

from common.chain.local.dispatch import Context, call
from common.chain.local.state import State

IP_TYPES = (4, 6)


def serving_error(state: State, hotkey: str, netuid: int, ip: int, port: int, ip_type: int) -> str | None:
    """The error of publishing this endpoint now, or None."""
    if state.uid_of(netuid, hotkey) is None:
        return "HotKeyNotRegisteredInNetwork"
    if ip_type not in IP_TYPES:
        return "InvalidIpType"
    if not _ip_allowed(ip, ip_type):
        return "InvalidIpAddress"
    if port == 0:
        return "InvalidPort"
    axon = state.get("Axons", netuid, hotkey)
    limit = state.get("ServingRateLimit", netuid)
    if axon is not None and limit and state.block - axon["block"] < limit:
        return "ServingRateLimitExceeded"
    return None


def _ip_allowed(ip: int, ip_type: int) -> bool:
    """As the real runtime: 127.0.0.1, ::1, broadcast and oversized addresses are refused, 127.0.0.2 is not."""
    if ip_type == 4:
        return ip < 2**32 - 1 and ip != int(ipaddress.IPv4Address("127.0.0.1"))
    return ip != int(ipaddress.IPv6Address("::1"))


@call("SubtensorModule", "serve_axon")
def serve_axon(
    ctx: Context,
    netuid: int,
    version: int,
    ip: int,
    port: int,
    ip_type: int,
    protocol: int,
    placeholder1: int,
    placeholder2: int,
) -> None:
    """Publish the signer's endpoint on the subnet."""
    hotkey = ctx.signer()
    error = serving_error(ctx.state, hotkey, netuid, ip, port, ip_type)
    if error:
        raise ctx.fail(error)
    axon = {"block": ctx.block, "version": version, "ip": ip, "port": port, "ip_type": ip_type}
    axon |= {"protocol": protocol, "placeholder1": placeholder1, "placeholder2": placeholder2}
    ctx.state.put("Axons", netuid, hotkey, value=axon)
    ctx.emit("AxonServed", (netuid, hotkey))
