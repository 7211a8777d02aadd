"""A `brigade` process on a machine of its own, and maybe with a wrong clock or a dishonest operator.

    python -m tests.support.misfit --via 127.0.0.1:9000=127.0.0.1:41001 --clock-s 300 --orders FILE -- miner start …

It is the program itself, started from its own command line, in a process where

- connections to one address go to another (``--via``): the machine's own line, usually a fault proxy. The program
  still names the address that it knows, so that hosts in signed URLs and in requests are the right ones;
- the wall clock is off (``--clock-s``);
- the health of miners is known as soon as rounds of seconds need it (``--hurry``): a past takes fewer of them, and
  probes of one machine follow each other within a second;
- one function of the miner is replaced: what it announces, what it puts or how often it asks follows the word in the
  file of ``--orders`` (see ``LIES``), which may change at any time. An empty or missing file means honest work.
"""

from __future__ import annotations

import argparse
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Address = tuple[str, int]
LIES = ("nan", "scale", "flip", "copy", "average", "missing", "twice", "mean")
"""nan: values that are none; scale: a hundred times the work; flip: its opposite; copy, average: what others have
handed in for the round instead of own work; missing: announced, and never put; twice: every request once more; mean:
another mean of its partitions than the right one."""


def main(arguments: Sequence[str]) -> None:
    """Change this process, then be ``brigade``. Does not return."""
    parser = argparse.ArgumentParser("python -m tests.support.misfit", description=__doc__)
    parser.add_argument("--via", type=_detour, action="append", default=[], help="ADDRESS=ADDRESS of connections")
    parser.add_argument("--clock-s", type=float, default=0.0, help="how far the wall clock is ahead")
    parser.add_argument("--hurry", action="store_true", help="know the health of miners sooner")
    parser.add_argument("--orders", type=Path, help="file with the present lie")
    parser.add_argument("--bucket-url", default="", help="where a liar looks for the originals of its copies")
    parser.add_argument("--victims", type=Path, nargs="*", default=[], help="state folders of whom to copy")
    own, rest = _split(arguments)
    options = parser.parse_args(own)
    divert(dict(options.via))
    shift_clock(options.clock_s)
    if options.hurry:
        hurry()
    from common import cli

    if options.orders is not None:
        from tests.support.liar import Liar

        Liar(options.orders, options.bucket_url, options.victims).take_over()
    cli.main(rest)


def divert(detours: Mapping[Address, Address]) -> None:
    """Connect to ``detours[address]`` whenever the program connects to ``address``."""
    if not detours:
        return
    plain, plain_ex = socket.socket.connect, socket.socket.connect_ex

    def connect(self: socket.socket, address: Any) -> None:
        plain(self, _diverted(detours, address))

    def connect_ex(self: socket.socket, address: Any) -> int:
        return plain_ex(self, _diverted(detours, address))

    socket.socket.connect, socket.socket.connect_ex = connect, connect_ex  # type: ignore[method-assign,assignment]


def hurry() -> None:
    """Waits and rounds that cost a test its time and are no part of what it shows."""
    from common import timeouts
    from validator.health import past

    timeouts.PROBE_REST_S = timeouts.PROBE_AGAIN_S = 1.0
    past.LEAST, past.LAG = 4, 2


def shift_clock(ahead_s: float) -> None:
    """Let the wall clock be ahead by ``ahead_s``; durations stay right."""
    if ahead_s == 0:
        return
    true_s, true_ns = time.time, time.time_ns
    time.time = lambda: true_s() + ahead_s
    time.time_ns = lambda: true_ns() + int(ahead_s * 1e9)


def _diverted(detours: Mapping[Address, Address], address: Any) -> Any:
    return detours.get(address, address) if isinstance(address, tuple) else address


def _detour(text: str) -> tuple[Address, Address]:
    known, _, real = text.partition("=")
    return _address(known), _address(real)


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    return host, int(port)


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Our own words and, behind ``--``, the program's."""
    at = list(arguments).index("--")
    return list(arguments[:at]), list(arguments[at + 1 :])


if __name__ == "__main__":
    main(sys.argv[1:])
