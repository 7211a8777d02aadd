"""Ports that a server could take now."""

from __future__ import annotations

import socket

LOOPBACK = "127.0.0.1"


def is_free(port: int, ip: str = LOOPBACK) -> bool:
    """Whether a server could listen there now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do, or TIME_WAIT would look taken
        try:
            probe.bind((ip, port))
        except OSError:
            return False
    return True
