"""The probe: a good bucket passes and is left as it was; each bad one ends in one line that says what to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from common.errors import Rejected, Retryable, SetupError
from common.store.config import StorageConfig
from common.store.memory import MemoryStore
from common.store.port import PresignedPut
from common.store.probe import ProbeReport, probe, probe_bucket
from common.store.s3 import S3Store
from tests.support.storage import quick_store


def run(
    store: MemoryStore, skew_s: float = 0.2, send: Callable[[PresignedPut, bytes], object] | None = None
) -> ProbeReport:
    def redeem(put: PresignedPut, body: bytes) -> str:
        return store.redeem_put(put.url, put.headers, body)

    return probe(store, "token", send=send or redeem, skew_s=lambda: skew_s)


def refusal(store: MemoryStore, **arguments: object) -> str:
    with pytest.raises(SetupError) as failure:
        run(store, **arguments)  # type: ignore[arg-type]
    assert "\n" not in str(failure.value)
    store.before = None
    assert list(store.list("")) == []
    assert list(store.list_uploads("")) == []
    return str(failure.value)


def test_a_real_bucket_passes_and_is_left_clean(s3: S3Store) -> None:
    report = probe_bucket(s3, "token")
    assert {"if-none-match", "multipart"} <= set(report.passed)
    assert abs(report.skew_s) < 30
    assert list(s3.list("")) == []
    assert list(s3.list_uploads("")) == []


def test_a_store_that_keeps_the_contract_passes() -> None:
    store = MemoryStore()
    assert run(store).skew_s == 0.2
    assert list(store.list("")) == []


def test_a_server_that_ignores_conditional_puts() -> None:
    line = refusal(MemoryStore(honours_conditions=False))
    assert "ignores conditional puts" in line
    assert "use Cloudflare R2" in line


def test_a_server_that_ignores_if_match_only() -> None:
    store = MemoryStore()

    def forget_conditions(operation: str, key: str) -> None:
        store._honours_conditions = not key.endswith("swap")

    store.before = forget_conditions
    assert "If-Match" in refusal(store)


def test_a_server_that_takes_other_bytes_than_announced() -> None:
    store = MemoryStore()
    line = refusal(store, send=lambda put, body: store.put("probe/token/presigned", body))
    assert "other bytes" in line


def test_a_server_that_stores_something_else() -> None:
    store = MemoryStore()

    def damage(put: PresignedPut, body: bytes) -> None:
        store.redeem_put(put.url, put.headers, body)
        store.corrupt("probe/token/presigned", lambda stored: stored[::-1])

    assert "does not give back" in refusal(store, send=damage)


@pytest.mark.parametrize("skew_s", [-3600.0, 90.0])
def test_a_clock_that_is_off(skew_s: float) -> None:
    line = refusal(MemoryStore(), skew_s=skew_s)
    assert "clock" in line
    assert "NTP" in line


def test_a_listing_that_misses_objects() -> None:
    store = MemoryStore()

    def hide(operation: str, key: str) -> None:
        if operation == "list" and key == "probe/token/":
            store._objects.pop("probe/token/once", None)

    store.before = hide
    assert "listing" in refusal(store)


def test_a_store_that_does_not_check_parts() -> None:
    store = MemoryStore()

    def careless(put: PresignedPut, body: bytes) -> None:
        if "content-md5" not in put.headers:
            store.redeem_put(put.url, put.headers, body)

    assert "checksum of a part" in refusal(store, send=careless)


def test_a_store_without_parts() -> None:
    store = MemoryStore()
    store.fail_next(Rejected("not_supported", "501 NotImplemented"), operation="create_multipart")
    assert "does not do what Brigade needs" in refusal(store)


def test_a_store_that_forgets_uploads_under_way() -> None:
    store = MemoryStore()

    def forget(operation: str, key: str) -> None:
        if operation == "list_uploads" and store._uploads.list(key):
            store._uploads._uploads.clear()

    store.before = forget
    assert "misses a multipart upload" in refusal(store)


def test_a_store_that_does_not_answer() -> None:
    store = MemoryStore()
    for _ in range(2):
        store.fail_next(Retryable("no connection"))
    assert "Is it running" in refusal(store)


def test_wrong_credentials_missing_bucket_and_nobody_there(config: StorageConfig) -> None:
    for wrong, words in (
        (replace(config, secret_key="wrong"), "check the access key"),
        (replace(config, bucket="mistyped"), "create it, or correct its name"),
        (replace(config, endpoint="http://127.0.0.1:1"), "Is it running"),
    ):
        with pytest.raises(SetupError, match=words):
            probe_bucket(quick_store(wrong), "token")
