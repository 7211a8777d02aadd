"""The small parts: retry policy, reading of error replies, the configuration file, faults of the memory store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import BrigadeError, OperatorError, Rejected, Retryable
from common.store.config import StorageConfig, load_config, save_config
from common.store.memory import MemoryStore
from common.store.port import OutcomeUnknown
from common.store.replies import ErrorReply, parse_reply, store_error
from common.store.retry import RetryPolicy, with_retries
from common.store.transfer import upload_error

CONFIG = StorageConfig("http://127.0.0.1:9000/", "bucket", "key", "secret", "some/prefix")


@settings(deadline=None)
@given(failures=st.integers(1, 10_000), draw=st.floats(0, 1, exclude_max=True), asked=st.none() | st.floats(0, 1e9))
def test_waits_are_bounded_and_jittered(failures: int, draw: float, asked: float | None) -> None:
    policy = RetryPolicy(first_wait_s=0.5, longest_wait_s=8.0, longest_asked_wait_s=60.0)
    wait_s = policy.wait_s(failures, asked, lambda: draw)
    step_s = min(8.0, 0.5 * 2 ** min(failures - 1, 30))
    assert wait_s >= step_s / 2
    assert wait_s <= max(step_s, 60.0)


def test_only_passing_faults_are_repeated() -> None:
    calls: list[float] = []

    def refuse() -> None:
        calls.append(0)
        raise Rejected("no", "never")

    with pytest.raises(Rejected):
        with_retries(refuse, RetryPolicy(), sleep=calls.append, uniform=lambda: 0.0)
    assert calls == [0]


def test_contradictory_policies_are_refused() -> None:
    with pytest.raises(OperatorError):
        RetryPolicy(attempts=0)
    with pytest.raises(OperatorError):
        RetryPolicy(first_wait_s=9.0, longest_wait_s=1.0)


@settings(deadline=None)
@given(status=st.integers(100, 999), body=st.binary(max_size=300), retry_after=st.none() | st.text(max_size=12))
def test_any_reply_becomes_a_typed_error(status: int, body: bytes, retry_after: str | None) -> None:
    for content in (body, b"<Error><Code>" + body + b"</Code></Error>"):
        reply = parse_reply(status, content, retry_after)
        assert isinstance(store_error(reply, "key", "here"), BrigadeError)
        assert isinstance(store_error(reply, "key", "here", conditional=True), BrigadeError)
        assert isinstance(upload_error(reply, "http://x/?X-Amz-Date=" + content.hex(), 1.0, "it"), BrigadeError)


def test_a_reply_is_read_by_its_code_first() -> None:
    assert parse_reply(400, b"<Error><Code>SlowDown</Code></Error>", "4") == ErrorReply(400, "SlowDown", 4.0)
    assert isinstance(store_error(ErrorReply(400, "SlowDown"), "k", "w"), Retryable)
    assert parse_reply(503, b"", "Tue, 01 Dec 2026 10:00:00 GMT").retry_after_s is None


def test_a_configuration_survives_the_file_and_is_private(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "storage.json"
    save_config(CONFIG, path)
    save_config(CONFIG, path)
    assert load_config(path) == CONFIG
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["storage.json"]
    assert CONFIG.public_base_url() == "http://127.0.0.1:9000/bucket/some/prefix"
    assert "secret" not in repr(CONFIG)


_JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(
            st.sampled_from(["endpoint", "bucket", "access_key", "secret_key", "prefix", "region", "other"]), inner
        )
    ),
)


@settings(deadline=None, max_examples=60)
@given(content=st.binary(max_size=200) | _JSON.map(lambda value: json.dumps(value).encode()))
def test_any_other_file_is_refused_in_one_line(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "storage.json"
    path.write_bytes(content)
    with pytest.raises(OperatorError) as refusal:
        load_config(path)
    assert "\n" not in str(refusal.value)


def test_memory_faults_do_what_they_say() -> None:
    store = MemoryStore()
    store.lose_next_reply(key_part="slot")
    store.put("other", b"x")
    with pytest.raises(OutcomeUnknown):
        store.put("slot", b"mine", if_none_match=True)
    assert store.get("slot", max_bytes=4).body == b"mine"
    store.fail_next(Retryable("later"), operation="put", key_part="slot")
    assert store.head("slot") is not None
    with pytest.raises(Retryable, match="later"):
        store.put("slot", b"new")
    assert store.get("slot", max_bytes=4).body == b"mine"
    calls: list[tuple[str, str]] = []
    store.before = lambda operation, key: calls.append((operation, key))
    store.delete("slot")
    assert calls == [("delete", "slot")]
