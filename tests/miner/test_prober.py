"""A real miner and a real S3 server: what the leader sees of the miner's link while it trains."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from common import timeouts
from common.keys import probe_key
from common.store.config import StorageConfig
from common.wire import ProbeOrder
from tests.miner.leader import MINER, Bucket
from tests.miner.mining import beating, delivered, mining, trained
from tests.miner.probing import ProbingLeader
from tests.support.faultproxy import FaultProxy
from tests.support.httpserver import Reply, Request, ScriptedServer
from tests.support.storage import fresh_prefix, running_server
from validator.health.evidence import Kind
from validator.probes import TRANSFERS, Outcome, Probes

SLOW_BPS = 1e6
RATE = 3e5
"""Bytes per second that sizes are chosen for: 256 KiB."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StorageConfig]:
    with running_server(tmp_path_factory.mktemp("seaweed")) as (_, config):
        yield config


@dataclass
class Desk:
    """A leader, a miner that trains, and the link between the miner and the storage."""

    leader: ProbingLeader
    link: FaultProxy

    def probe(self, *kinds: Kind, count: int = 1) -> list[Outcome]:
        """Want these, and wait for so many ends."""
        self.leader.want(*kinds)
        self.leader.wait_for(lambda probed: len(probed.ends) >= count)
        return self.leader.probed.ends

    def rate(self, kind: Kind) -> float:
        """Bytes per second, as one transfer shows it to a leader that knows nothing yet."""
        self.leader.probes = Probes(lambda kind, hotkey: RATE)
        assert self.probe(kind)[0] is Outcome.RIGHT
        return math.exp(self.leader.probes.take()[kind][MINER.hotkey].log_rate)

    def give_up(self) -> None:
        """The time of the probe that is under way is over, and that to ask again has come."""
        self.leader.ahead_s += timeouts.PROBE_S + 1
        self.leader.wait_for(lambda probed: probed.ends)
        self.leader.ahead_s += 10 * timeouts.PROBE_REST_S

    def goes_on(self) -> None:
        """The miner trains and is heard as before."""
        self.leader.forget()
        self.leader.wait_until(beating)
        tokens = self.leader.seen.beats[-1].round_tokens
        self.leader.wait_until(lambda seen: seen.beats[-1].round_tokens > tokens)


@pytest.fixture
def desk(tmp_path: Path, server: StorageConfig) -> Iterator[Desk]:
    own = fresh_prefix(server)
    with FaultProxy(own.endpoint) as link:
        bucket = Bucket(own, replace(own, endpoint=link.endpoint))
        with ProbingLeader(tmp_path, bucket) as leader:
            leader.open_round()
            with mining(leader, tmp_path):
                leader.wait_until(trained())  # type: ignore[arg-type]
                yield Desk(leader, link)


def test_both_ways_are_measured_while_the_miner_trains(desk: Desk) -> None:
    assert desk.probe(Kind.UPLINK, Kind.DOWNLINK, count=2 * TRANSFERS) == [Outcome.RIGHT] * 2 * TRANSFERS
    shown = desk.leader.probes.take()
    for kind in (Kind.UPLINK, Kind.DOWNLINK):
        assert not shown[kind][MINER.hotkey].at_most
    left = [info.key for info in desk.leader.world.store.list(f"runs/{desk.leader.spec.run}/probes/")]
    assert sorted(left) == [probe_key(desk.leader.spec.run, MINER.hotkey, way) for way in ("down", "up")]
    desk.goes_on()


@pytest.mark.parametrize("kind", [Kind.UPLINK, Kind.DOWNLINK])
def test_a_throttled_link_shows_a_lower_rate_that_way(desk: Desk, kind: Kind) -> None:
    before = desk.rate(kind)
    way = desk.link.link.up if kind is Kind.UPLINK else desk.link.link.down
    way.rate_bps = SLOW_BPS
    slow = desk.rate(kind)
    way.rate_bps = None
    after = desk.rate(kind)
    assert 1.2 * slow < min(before, after)
    assert slow < 1.1 * SLOW_BPS / 8


def test_bytes_that_are_not_the_ordered_ones_are_a_wrong_answer(desk: Desk) -> None:
    key = probe_key(desk.leader.spec.run, MINER.hotkey, "down")

    def change(order: ProbeOrder) -> ProbeOrder:
        desk.leader.world.store.put(key, bytes(order.size_bytes))
        return order

    desk.leader.spoil = change
    assert desk.probe(Kind.DOWNLINK)[0] is Outcome.WRONG
    assert desk.leader.probes.take()[Kind.DOWNLINK][MINER.hotkey].at_most
    desk.goes_on()


def test_an_answer_that_does_not_come_in_time_is_a_bound_and_changes_nothing_when_it_comes(desk: Desk) -> None:
    leader = desk.leader
    desk.probe(Kind.UPLINK, count=TRANSFERS)
    leader.probes.take()
    leader.forget()
    with leader.holding("/v1/probes"):
        leader.want(Kind.UPLINK)
        leader.wait_until(lambda seen: bool(seen.held))
        leader.forget()
        leader.wait_until(beating)
        leader.ahead_s += timeouts.PROBE_S + 1
        leader.wait_for(lambda probed: probed.ends)
    assert leader.probed.ends[0] is Outcome.SILENT
    assert leader.probes.take()[Kind.UPLINK][MINER.hotkey].at_most
    leader.wait_for(lambda probed: len(probed.ends) == TRANSFERS)
    assert leader.probed.ends[1:] == [Outcome.RIGHT] * (TRANSFERS - 1)
    nonces = [answer.nonce for answer in leader.probed.answers]
    assert nonces[0] == leader.probed.orders[0].nonce, "it came after all"
    desk.goes_on()


def test_a_link_in_use_by_a_delta_is_said_to_be_busy_and_probed_later(desk: Desk) -> None:
    leader = desk.leader
    desk.link.stall()
    leader.forget()
    leader.order = "submit"
    leader.wait_until(lambda seen: bool(seen.beats) and seen.beats[-1].upload is not None)
    assert desk.probe(Kind.UPLINK)[0] is Outcome.BUSY
    assert leader.probes.take() == {}
    desk.link.stall(False)
    leader.wait_until(delivered)
    leader.ahead_s += timeouts.PROBE_AGAIN_S
    leader.wait_for(lambda probed: len(probed.ends) > 1)
    assert leader.probed.ends[1] is Outcome.RIGHT


def test_bytes_go_to_the_runs_storage_and_nowhere_else(desk: Desk) -> None:
    asked: list[str] = []

    def answer(request: Request) -> Reply:
        asked.append(request.path)
        return Reply(200)

    with ScriptedServer(answer) as elsewhere:

        def lead_away(order: ProbeOrder) -> ProbeOrder:
            assert order.upload is not None
            target = order.upload.model_copy(update={"url": elsewhere.url() + "/x"})
            return order.model_copy(update={"upload": target})

        desk.leader.spoil = lead_away
        desk.leader.want(Kind.UPLINK)
        desk.leader.wait_for(lambda probed: probed.orders)
        desk.goes_on()
        desk.leader.spoil = lambda order: order
        desk.give_up()
        assert desk.probe(Kind.UPLINK)[0] is Outcome.RIGHT, "by then it was done with the one before"
    assert asked == []


@pytest.mark.parametrize("kind", [Kind.UPLINK, Kind.DOWNLINK])
def test_a_storage_that_is_away_costs_the_probe_and_nothing_else(desk: Desk, kind: Kind) -> None:
    desk.link.answer(503, None, path="/", contains="/probes/")
    desk.leader.want(kind)
    desk.leader.wait_for(lambda probed: probed.orders)
    desk.goes_on()
    desk.link.stop_answering()
    desk.give_up()
    assert desk.probe(kind)[0] is Outcome.RIGHT
