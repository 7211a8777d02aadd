"""The hashes of parts that come with a manifest: bounded, and hashes or nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import Rejected
from common.store.multipart import MAX_PARTS
from common.wire import SubmissionRequest, parse

_JSON = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=40) | st.lists(st.text(max_size=3))
_DIGEST = st.text("0123456789abcdef", min_size=32, max_size=32)


@settings(deadline=None, max_examples=60)
@given(parts=st.lists(_DIGEST | _JSON, max_size=6) | _JSON)
def test_hashes_of_parts_are_hashes_or_the_request_is_refused(parts: Any) -> None:
    data = json.dumps({"manifest": {}, "parts": parts}).encode()
    good = isinstance(parts, list) and all(
        isinstance(part, str) and len(part) == 32 and set(part) <= set("0123456789abcdef") for part in parts
    )
    if good:
        assert parse(SubmissionRequest, data).parts == tuple(parts)
        return
    with pytest.raises(Rejected) as refusal:
        parse(SubmissionRequest, data)
    assert refusal.value.code == "bad_message"


def test_no_request_has_more_hashes_than_an_object_may_have_parts() -> None:
    many = {"manifest": {}, "parts": ["0" * 32] * (MAX_PARTS + 1)}
    with pytest.raises(Rejected, match="bad_message"):
        parse(SubmissionRequest, json.dumps(many).encode())
