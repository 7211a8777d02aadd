"""Ports of a run's servers: they stay, and lie where no server started at the same time looks for its own."""

from __future__ import annotations

import random
from pathlib import Path

from common.store.ports import GRPC_OFFSET, free_port_pairs
from validator.up.ports import FIRST, LAST, choose_ports

SERVERS = {"chain": "127.0.0.1", "validator": "127.0.0.2"}


def test_no_port_is_one_that_the_storage_server_may_take() -> None:
    for seed in range(20):
        pairs = free_port_pairs(5, random.Random(seed))
        assert max(pairs) + GRPC_OFFSET < FIRST


def test_ports_are_kept_for_the_next_start(tmp_path: Path) -> None:
    path = tmp_path / "ports.json"
    chosen = choose_ports(path, SERVERS, random.Random(1))
    assert set(chosen) == set(SERVERS)
    assert all(FIRST <= port <= LAST for port in chosen.values())
    assert choose_ports(path, SERVERS, random.Random(2)) == chosen
