"""Each misdeed of the fault proxy, on loopback, in front of a server that says what reached it."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import urllib3

from tests.support.faultcli import change_of
from tests.support.faultproxy import FaultProxy
from tests.support.httpserver import Reply, Request, ScriptedServer
from tests.support.link import Link

ROOT = Path(__file__).resolve().parents[2]
BODY = bytes(range(256)) * 1024
SHORT_S = 0.2
"""How long a test looks at a line on which nothing must come."""
LONG_S = 60.0


def echo(request: Request) -> Reply:
    return Reply(200, request.body)


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(echo) as running:
        yield running


@pytest.fixture
def proxy(server: ScriptedServer) -> Iterator[FaultProxy]:
    with FaultProxy(server.url()) as running:
        yield running


def put(proxy: FaultProxy, body: bytes = BODY, path: str = "/x", method: str = "PUT") -> urllib3.BaseHTTPResponse:
    """One request on a connection of its own, without retries."""
    with urllib3.PoolManager(retries=False, timeout=LONG_S) as pool:
        return pool.request(method, proxy.endpoint + path, body=body)


def connect(proxy: FaultProxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=LONG_S)


def request_on(line: socket.socket, body: bytes = b"hello") -> None:
    line.sendall(b"PUT /x HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % len(body) + body)


def begin_on(line: socket.socket) -> None:
    """A request whose five bytes of body the server is waiting for: the connection is certainly there and open."""
    line.sendall(b"PUT /x HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n")
    assert line.recv(1 << 16).startswith(b"HTTP/1.1 100")


def is_reset(line: socket.socket) -> bool:
    """Read to the end: whether it is a reset."""
    try:
        while line.recv(1 << 16):
            pass
    except ConnectionResetError:
        return True
    return False


def test_bytes_pass_unchanged_and_are_counted(proxy: FaultProxy, server: ScriptedServer) -> None:
    assert put(proxy).data == BODY
    assert server.requests[0].body == BODY
    assert server.requests[0].headers["host"] == f"127.0.0.1:{proxy.port}"
    counters = proxy.counters
    assert counters.connections == proxy.connections == 1
    assert len(BODY) < counters.up_bytes < len(BODY) + 500
    assert len(BODY) < counters.down_bytes < len(BODY) + 500


def test_proxies_share_one_link(server: ScriptedServer) -> None:
    link = Link(up_bps=80e6, down_bps=400e6)
    with FaultProxy(server.url(), link=link) as one, FaultProxy(server.url(), link=link) as other:
        threads = [threading.Thread(target=put, args=(proxy,)) for proxy in (one, other, one)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [request.body for request in server.requests] == [BODY] * 3
        assert link.up.passed_bytes == one.up_bytes + other.up_bytes > 3 * len(BODY)
        assert link.down.passed_bytes == one.down_bytes + other.down_bytes > 3 * len(BODY)


def test_a_throttled_link_is_not_faster_than_it_may_be(proxy: FaultProxy) -> None:
    proxy.link.up.rate_bps = 8e6
    begun_s = time.monotonic()
    assert put(proxy).data == BODY
    assert time.monotonic() - begun_s > len(BODY) * 8 / 8e6 - 0.05


def test_latency_delays_but_does_not_throttle(proxy: FaultProxy) -> None:
    proxy.latency_s = 0.15
    begun_s = time.monotonic()
    assert put(proxy, BODY * 8).data == BODY * 8  # 128 blocks: one after the other they would take 40 s
    assert 0.3 < time.monotonic() - begun_s < 20


def test_a_lost_reply_comes_after_the_whole_request(proxy: FaultProxy, server: ScriptedServer) -> None:
    proxy.lose_replies()
    with pytest.raises(urllib3.exceptions.ProtocolError):
        put(proxy)
    assert [request.body for request in server.requests] == [BODY]
    assert proxy.counters.lost_replies == 1
    assert put(proxy).status == 200


def test_requests_and_replies_are_cut_where_it_was_asked(proxy: FaultProxy, server: ScriptedServer) -> None:
    proxy.cut_requests(100_000, 0)
    for _ in range(2):
        with pytest.raises(urllib3.exceptions.ProtocolError):
            put(proxy)
    assert proxy.up_bytes == 100_000
    assert server.requests == []
    proxy.cut_replies(50_000, 0)
    for expected in (50_000, 50_000):
        with pytest.raises(urllib3.exceptions.ProtocolError):
            put(proxy)
        assert proxy.down_bytes == expected
    assert proxy.counters.cuts == 4
    assert put(proxy).data == BODY


def test_cut_all_resets_what_is_open(proxy: FaultProxy) -> None:
    with connect(proxy) as line:
        begin_on(line)
        proxy.cut_all()
        assert is_reset(line)
    assert put(proxy).status == 200


def test_a_black_hole_swallows_on_old_and_new_connections(server: ScriptedServer, proxy: FaultProxy) -> None:
    with connect(proxy) as old, connect(proxy) as new:
        request_on(old)
        old.recv(10)
        proxy.black_hole = True
        with connect(proxy) as late:
            for line in (new, late):
                request_on(line)
                line.settimeout(SHORT_S)
                with pytest.raises(TimeoutError):
                    line.recv(1)
            assert len(server.requests) == 1
            assert proxy.counters.swallowed_bytes > 0
            proxy.black_hole = False
            for line in (new, late):
                line.settimeout(LONG_S)
                with contextlib.suppress(OSError):
                    request_on(line)
                assert is_reset(line)
    assert put(proxy).status == 200


def test_a_stalled_line_goes_on_where_it_was(server: ScriptedServer, proxy: FaultProxy) -> None:
    with connect(proxy) as old:
        request_on(old)
        assert b"hello" in _read_reply(old)
        proxy.stall()
        with connect(proxy) as late:
            request_on(late, b"later")
            late.settimeout(SHORT_S)
            with pytest.raises(TimeoutError):
                late.recv(1)
            assert len(server.requests) == 1
            proxy.stall(False)
            late.settimeout(LONG_S)
            assert b"later" in _read_reply(late)


def test_refused_connections_and_the_same_port_again(proxy: FaultProxy) -> None:
    with connect(proxy) as old:
        begin_on(old)
        proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            connect(proxy)
        old.sendall(b"hello")
        assert b"hello" in _read_reply(old)
    proxy.refuse(False)
    assert put(proxy).status == 200


@pytest.mark.parametrize("status", [503, 429])
def test_answers_of_its_own_are_used_up(server: ScriptedServer, proxy: FaultProxy, status: int) -> None:
    proxy.answer(status, 2, retry_after_s=7)
    for _ in range(2):
        reply = put(proxy)
        assert (reply.status, reply.headers["Retry-After"]) == (status, "7")
        assert b"SlowDown" in reply.data
    assert server.requests == []
    assert put(proxy).data == BODY
    assert proxy.counters.answered == 2


def test_answers_go_by_method_and_path_and_can_be_taken_away(server: ScriptedServer, proxy: FaultProxy) -> None:
    proxy.answer(503, None, method="PUT", path="/bucket", body=b"busy")
    proxy.answer(429, None, method="HEAD")
    assert [put(proxy, path="/bucket/1").data, put(proxy, path="/bucket/2").data] == [b"busy"] * 2
    head = put(proxy, method="HEAD", body=b"")
    assert (head.status, head.data) == (429, b"")
    assert put(proxy, path="/other").status == 200
    assert put(proxy, path="/bucket", method="POST").status == 200
    proxy.stop_answering()
    assert put(proxy, path="/bucket/1").status == 200


def test_a_request_that_has_begun_is_not_answered(proxy: FaultProxy) -> None:
    with connect(proxy) as line:
        begin_on(line)
        proxy.answer(503)  # too late for this request, whose body is still to come
        line.sendall(b"PUT /")
        assert b"HTTP/1.1 200" in _read_reply(line)
    assert put(proxy).status == 503


def test_one_byte_is_corrupted_in_the_direction_asked_for(proxy: FaultProxy, server: ScriptedServer) -> None:
    proxy.corrupt_requests(100_000)
    put(proxy)
    assert _differing(server.requests[0].body, BODY) == 1
    proxy.corrupt_replies(100_000)
    assert _differing(put(proxy).data, BODY) == 1
    assert server.requests[1].body == BODY
    assert proxy.counters.flipped_bytes == 2
    assert put(proxy).data == BODY


def test_one_byte_of_an_upload_is_corrupted(proxy: FaultProxy, server: ScriptedServer) -> None:
    proxy.corrupt_uploads(100_000)
    urllib3.request("GET", proxy.endpoint, retries=False)
    put(proxy)
    put(proxy)
    assert [_differing(request.body, BODY) for request in server.requests[1:]] == [1, 0]
    assert proxy.counters.uploads == 2


def test_a_schedule_changes_the_faults(proxy: FaultProxy) -> None:
    order: list[str] = []
    done = threading.Event()
    proxy.schedule([(0.02, lambda _: done.set()), change_of("0:answer=503*1"), (0.01, lambda _: order.append("b"))])
    assert done.wait(LONG_S)
    assert order == ["b"]
    assert put(proxy).status == 503


def test_what_is_scheduled_for_later_does_not_keep_the_proxy(server: ScriptedServer) -> None:
    with FaultProxy(server.url()) as proxy:
        proxy.schedule([(1e6, FaultProxy.cut_all)])


@pytest.mark.parametrize(
    "text", ["stall=on", "x:stall=on", "1:stall=perhaps", "1:nonsense=1", "1:answer=", "1:up-mbit=x"]
)
def test_a_change_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        change_of(text)


def test_a_target_without_a_port_is_refused() -> None:
    with pytest.raises(ValueError, match="host:port"):
        FaultProxy("http://127.0.0.1")


def test_it_runs_as_a_process_in_front_of_several_servers(server: ScriptedServer) -> None:
    target = server.url().removeprefix("http://")
    command = [sys.executable, "-m", "tests.support.faultproxy", "--up-mbit", "400", "--at", "0:lose-replies=0"]
    for _ in range(2):
        command += ["--listen", "127.0.0.1:0", "--to", target]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            endpoints = json.loads(process.stdout.readline())["endpoints"]
            for endpoint in endpoints:
                assert urllib3.request("PUT", endpoint + "/x", body=BODY, retries=False, timeout=LONG_S).data == BODY
        finally:
            process.send_signal(signal.SIGTERM)
        counters = json.loads(process.stdout.readline())["counters"]
        assert [one["connections"] for one in counters] == [1, 1]
        assert process.wait(LONG_S) == 0


def _read_reply(line: socket.socket) -> bytes:
    """Until the server, which keeps no connection, closes."""
    data = b""
    while block := line.recv(1 << 16):
        data += block
    return data


def _differing(one: bytes, other: bytes) -> int:
    assert len(one) == len(other)
    return sum(a != b for a, b in zip(one, other, strict=True))
