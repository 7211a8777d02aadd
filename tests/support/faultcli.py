"""The fault proxy as a process: a throttled, faulty link in front of one server or several.

    python -m tests.support.faultproxy --listen 127.0.0.1:0 --to 127.0.0.1:9000 --up-mbit 100 --down-mbit 500 \\
        --latency-ms 20 --at 30:stall=on --at 40:stall=off --at 60:answer=503*5

Each ``--listen`` goes with the ``--to`` in its place; all of them share one link. Standard output has one JSON line
when all listen (``{"endpoints": […]}``) and one with the counters at the end, which SIGTERM, SIGINT or the end of the
standard input (``--until-eof``) brings.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict

from tests.support.faultproxy import Change, FaultProxy
from tests.support.link import Link

Action = Callable[[FaultProxy], None]


def main(arguments: Sequence[str]) -> int:
    """Run until a signal comes."""
    options = _parser().parse_args(arguments)
    if len(options.listen) != len(options.to):
        _parser().error("give one --to for each --listen")
    link = Link(_bps(options.up_mbit), _bps(options.down_mbit))
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    with contextlib.ExitStack() as stack:
        proxies = []
        for (host, port), target in zip(options.listen, options.to, strict=True):
            proxy = stack.enter_context(FaultProxy(target, link=link, host=host, port=port))
            proxy.latency_s = options.latency_ms / 1000
            proxy.schedule(options.at)
            proxies.append(proxy)
        print(json.dumps({"endpoints": [proxy.endpoint for proxy in proxies]}), flush=True)
        if options.until_eof:
            threading.Thread(target=_wait_for_eof, args=(ended,), daemon=True).start()
        ended.wait()
        print(json.dumps({"counters": [asdict(proxy.counters) for proxy in proxies]}), flush=True)
    return 0


def _wait_for_eof(ended: threading.Event) -> None:
    while sys.stdin.read(4096):
        pass
    ended.set()


def change_of(text: str) -> Change:
    """``30:stall=on`` → what to do after 30 seconds. Raises ``ValueError``."""
    after, _, rest = text.partition(":")
    name, _, value = rest.partition("=")
    if name not in SETTINGS:
        raise ValueError(f"{text!r} is not SECONDS:NAME=VALUE with a NAME of {', '.join(SETTINGS)}")
    return float(after), SETTINGS[name](value)


def _place(text: str) -> tuple[str, int]:
    """``127.0.0.1:0`` → host and port."""
    host, _, port = text.rpartition(":")
    return host, int(port)


def _bps(mbit: float | None) -> float | None:
    return None if mbit is None else mbit * 1e6


def _set(name: str, value: object) -> Action:
    return lambda proxy: setattr(proxy, name, value)


def _rate(up: bool) -> Callable[[str], Action]:
    def parse(value: str) -> Action:
        rate_bps = None if value == "off" else float(value) * 1e6

        def change(proxy: FaultProxy) -> None:
            (proxy.link.up if up else proxy.link.down).rate_bps = rate_bps

        return change

    return parse


def _on(value: str) -> bool:
    if value not in ("on", "off"):
        raise ValueError(f"{value!r} is neither on nor off")
    return value == "on"


def _stall(value: str) -> Action:
    on = _on(value)
    return lambda proxy: proxy.stall(on)


def _refuse(value: str) -> Action:
    on = _on(value)
    return lambda proxy: proxy.refuse(on)


def _answer(value: str) -> Action:
    """``503*5``: five of them; ``503``: all; ``off``: none any more."""
    if value == "off":
        return FaultProxy.stop_answering
    status, _, count = value.partition("*")
    number, left = int(status), int(count) if count else None
    return lambda proxy: proxy.answer(number, left, retry_after_s=1)


def _lose_replies(value: str) -> Action:
    count = int(value)
    return lambda proxy: proxy.lose_replies(count)


SETTINGS: dict[str, Callable[[str], Action]] = {
    "up-mbit": _rate(up=True),
    "down-mbit": _rate(up=False),
    "latency-ms": lambda value: _set("latency_s", float(value) / 1000),
    "black-hole": lambda value: _set("black_hole", _on(value)),
    "stall": _stall,
    "refuse": _refuse,
    "answer": _answer,
    "lose-replies": _lose_replies,
    "cut-all": lambda _: FaultProxy.cut_all,
}
"""What ``--at`` can set, by name."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m tests.support.faultproxy", description="A throttled, faulty link.")
    parser.add_argument("--listen", type=_place, action="append", required=True, help="HOST:PORT; port 0: a free one")
    parser.add_argument("--to", action="append", required=True, help="HOST:PORT or http://HOST:PORT")
    parser.add_argument("--up-mbit", type=float, help="Mbit/s towards the target, shared by all")
    parser.add_argument("--down-mbit", type=float, help="Mbit/s from the target, shared by all")
    parser.add_argument("--latency-ms", type=float, default=0.0, help="each way")
    parser.add_argument("--until-eof", action="store_true", help="end when the standard input does")
    known = ", ".join(SETTINGS)
    parser.add_argument("--at", type=change_of, action="append", default=[], help=f"SECONDS:NAME=VALUE; {known}")
    return parser
