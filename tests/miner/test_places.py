"""Which addresses a miner calls: validators', the storage's, and where a leader sends its delta."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.chain.commitment import RunLocation
from common.chain.port import Endpoint
from common.errors import Rejected, Retryable
from common.units import Sha256
from miner.places import StoragePlace, endpoint_url


def place(endpoint: str = "https://s3.example") -> StoragePlace:
    return StoragePlace.of(RunLocation("tiny", Sha256("ab" * 32), endpoint, "bucket", "x/y", public_read=True))


@pytest.mark.parametrize(
    ("ip", "private"),
    [("127.0.0.2", True), ("10.1.2.3", True), ("169.254.169.254", True), ("::1", True), ("8.8.8.8", False),
     ("2606:4700::1111", False), ("64:ff9b::10.1.2.3", True), ("::ffff:10.1.2.3", True), ("64:ff9b::8.8.8.8", False)],
)  # fmt: skip
def test_private_addresses_need_permission(ip: str, private: bool) -> None:
    assert endpoint_url(Endpoint(ip, 8091), allow_private=True).endswith(":8091")
    if private:
        with pytest.raises(Rejected, match="--allow-private"):
            endpoint_url(Endpoint(ip, 8091), allow_private=False)
    else:
        assert endpoint_url(Endpoint(ip, 8091), allow_private=False).startswith("http://")


@pytest.mark.parametrize("endpoint", [Endpoint("evil.example", 80), Endpoint("1.2.3.4", 0), Endpoint("", 80)])
def test_what_is_no_address_is_refused(endpoint: Endpoint) -> None:
    with pytest.raises(Rejected, match="bad_endpoint"):
        endpoint_url(endpoint, allow_private=True)


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("https://s3.example", "https://s3.example/bucket/x/y/k.delta?X-Amz-Signature=1"),
        ("https://s3.example", "https://S3.example:443/bucket/k"),
        ("https://s3.example:443", "https://bucket.s3.example/x/y/k"),
        ("http://127.0.0.1:9000", "http://127.0.0.1:9000/bucket/k"),
        ("http://[::1]:9000", "http://[::1]:9000/bucket/k"),
    ],
)
def test_deltas_go_to_the_committed_storage(endpoint: str, url: str) -> None:
    place(endpoint).check_upload(url)


@pytest.mark.parametrize(
    "url",
    [
        "http://s3.example/bucket/k",
        "https://s3.example:8443/bucket/k",
        "https://169.254.169.254/latest/api/token",
        "https://localhost:6379/",
        "https://evil.example/s3.example/bucket/k",
        "https://s3.example.evil.example/bucket/k",
        "https://other.s3.example/k",
        "https://s3.example@evil.example/bucket/k",
        "https://user:word@s3.example/bucket/k",
        "https://evil.example\\@s3.example/bucket/k",
        "file:///etc/passwd",
        "//s3.example/bucket/k",
        "https://[::1/k",
        "https://s3.example:99999/k",
        "",
    ],
)
def test_a_delta_goes_nowhere_else(url: str) -> None:
    with pytest.raises(Rejected, match="url_refused"):
        place().check_upload(url)


@given(st.text(max_size=60) | st.text(max_size=30).map(lambda text: f"https://{text}/k"))
def test_whatever_a_leader_names_is_judged(url: str) -> None:
    with pytest.raises(Rejected, match="url_refused"):
        place().check_upload(url)


@pytest.mark.parametrize(
    "endpoint",
    ["http://127.0.0.1:9000", "http://localhost:9000", "https://169.254.169.254", "http://[::ffff:10.0.0.1]"],
)
def test_a_private_storage_is_refused(endpoint: str) -> None:
    with pytest.raises(Rejected, match=r"bad_endpoint.*--allow-private permits it"):
        place(endpoint).check_public()


def test_a_public_storage_is_not() -> None:
    place("https://8.8.8.8").check_public()
    place("https://[2606:4700::1111]:9000").check_public()


def test_a_name_is_judged_by_what_it_resolves_to(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, 443)) for ip in ("8.8.8.8", "10.0.0.7")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    with pytest.raises(Rejected, match=r"s3.example is at 10\.0\.0\.7"):
        place().check_public()


def test_a_name_that_nobody_knows_now_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror("no such name")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(Retryable, match="can't be resolved"):
        place("https://storage.invalid").check_public()
