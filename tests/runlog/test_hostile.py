"""Bytes from strangers: every decoder of the log's world answers with ``Rejected`` or a value, never otherwise.

Two kinds of attack: damaged bytes of valid objects, and well-signed bodies that say anything at all.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common import canonical, keys
from common.errors import Rejected
from common.identity import KeypairSigner, sign_record
from common.records import MANIFEST, RECEIPT, decode_submission, open_manifest, open_receipt
from common.reports import REPORT, decode_report
from common.runlog.entries import LOG, decode_entry
from common.runlog.lease import LEASE, decode_lease
from common.runlog.replay import apply, begin, replay
from common.runlog.state import RunState
from common.units import Hotkey
from tests.runlog.support import ALICE, MINERS, OWNER, steady
from tests.runlog.world import World, eventful_world

SIGNERS = {signer.hotkey: signer for signer in (OWNER, ALICE, *MINERS)}


@lru_cache(maxsize=1)
def world() -> World:
    return eventful_world()


@lru_cache(maxsize=1)
def slots() -> list[bytes]:
    w = world()
    found = w.store.list("runs/tiny/log/")
    return [w.store.get(info.key, max_bytes=1 << 20).body for info in found]


@lru_cache(maxsize=1)
def samples() -> list[tuple[str, bytes]]:
    """One object of each signed kind, the plan and the commit among the entries."""
    w = world()
    listed = [(keys.parse_key("tiny", info.key), info.key) for info in w.store.list("")]
    by_kind = {parts.kind: key for parts, key in listed if parts is not None}
    signed = [(kind, by_kind[kind]) for kind in ("manifest", "lease", "report")]
    read = [(kind, w.store.get(key, max_bytes=1 << 20).body) for kind, key in signed]
    return read + [("log", slot) for slot in slots()[:5]]


def decoder(kind: str) -> Callable[[bytes], object]:
    return {
        "manifest": lambda data: decode_submission(data, "tiny"),
        "lease": lambda data: decode_lease(data, world().spec.run, world().spec.validators),
        "report": lambda data: decode_report(data, "tiny"),
        "log": lambda data: decode_entry(data, "tiny"),
    }[kind]


def assert_total(decode: Callable[[bytes], object], data: bytes) -> bool:
    """Whether the bytes were accepted. Anything but ``Rejected`` fails the test."""
    try:
        decode(data)
    except Rejected as error:
        return not error.code  # a rejection without a code would count as accepted
    return True


@st.composite
def damaged(draw: st.DrawFn) -> tuple[str, bytes]:
    """A kind of object, and bytes that differ from a valid one."""
    kind, body = draw(st.sampled_from(samples()))
    place = draw(st.integers(0, len(body) - 1))
    how = draw(st.sampled_from(["flip", "cut", "insert", "repeat", "random"]))
    if how == "flip":
        changed = body[:place] + bytes([body[place] ^ (1 << draw(st.integers(0, 7)))]) + body[place + 1 :]
    elif how == "cut":
        changed = body[:place]
    elif how == "insert":
        changed = body[:place] + draw(st.binary(min_size=1, max_size=8)) + body[place:]
    elif how == "repeat":
        changed = body[:place] + body
    else:
        changed = draw(st.binary(max_size=200))
    return kind, changed


@steady(400)
@given(damaged())
def test_damaged_bytes_are_refused(case: tuple[str, bytes]) -> None:
    kind, data = case
    if (kind, data) not in samples():
        assert not assert_total(decoder(kind), data)


@pytest.mark.parametrize("kind", ["lease", "log", "manifest", "report"])
def test_no_other_signature_of_the_same_body_is_made_by_flipping_bits(kind: str) -> None:
    body = next(data for found, data in samples() if found == kind)
    start = body.rindex(b'"signature":"') + len(b'"signature":"')
    for place in range(start, start + 128):
        for bit in range(8):
            changed = body[:place] + bytes([body[place] ^ (1 << bit)]) + body[place + 1 :]
            assert not assert_total(decoder(kind), changed)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abcdef_", max_size=6), inner, max_size=3),
    max_leaves=6,
)


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    here = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return here + [found for key, item in items for found in _paths(item, (*path, key))]


@st.composite
def forged(draw: st.DrawFn, body: dict[str, Any]) -> dict[str, Any]:
    """``body`` with a few fields replaced by anything, taken out, or joined by others."""
    changed = copy.deepcopy(body)
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(_paths(changed)))
        parent = changed
        for key in path[:-1]:
            parent = parent[key]
        how = draw(st.sampled_from(["set", "set", "set", "drop", "add"]))
        if how == "drop" and isinstance(parent, dict):
            del parent[path[-1]]
        elif how == "add" and isinstance(parent, dict):
            parent[draw(st.sampled_from(["extra", "weight", "schema"]))] = draw(JSON)
        else:
            parent[path[-1]] = draw(JSON)
        if not changed:
            break
    return changed


def _sign(kind: str, body: dict[str, Any]) -> dict[str, Any]:
    """Signed by whoever the body names, if that is one of ours, else by Alice who is then named."""
    named = body.get("signer")
    signer: KeypairSigner = SIGNERS.get(Hotkey(named), ALICE) if isinstance(named, str) else ALICE
    return sign_record(kind, body, signer).to_json()


@steady(150)
@given(st.data())
def test_signed_nonsense_in_a_slot_is_void_or_valid(data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(slots()) - 1))
    body = canonical.loads_object(slots()[index])["body"]
    forged_slot = canonical.dumps(_sign(LOG, data.draw(forged(body))))  # type: ignore[arg-type]
    assert_total(lambda slot: decode_entry(slot, "tiny"), forged_slot)
    if index == 0:
        assert_total(lambda slot: begin(world().spec, slot), forged_slot)
        return
    state = replay(world().spec, slots()[:index])
    after = apply(state, forged_slot).state
    assert isinstance(after, RunState)
    assert after.next_seq == index + 1


@steady(150)
@given(st.data())
def test_signed_nonsense_in_other_records_is_refused(data: st.DataObject) -> None:
    kind, body = data.draw(st.sampled_from([sample for sample in samples() if sample[0] != "log"]))
    table = canonical.loads_object(body)
    if kind == "manifest":
        which = data.draw(st.sampled_from(["manifest", "receipt"]))
        original = table[which]["body"]  # type: ignore[index,call-overload]
        signed = _sign(MANIFEST if which == "manifest" else RECEIPT, data.draw(forged(original)))
        opener = open_manifest if which == "manifest" else open_receipt
        assert_total(lambda _: opener(signed, "tiny"), b"")
        assert_total(decoder(kind), canonical.dumps({**table, which: signed}))
        return
    changed = data.draw(forged(table["body"]))  # type: ignore[arg-type]
    assert_total(decoder(kind), canonical.dumps(_sign(LEASE if kind == "lease" else REPORT, changed)))


@pytest.mark.parametrize("data", [b"[" * 100_000, b'{"a":' * 50_000, b"9" * 100_000, b'"' + b"\\u0000" * 1000 + b'"'])
def test_bombs_are_refused(data: bytes) -> None:
    for kind in ("manifest", "lease", "report", "log"):
        assert not assert_total(decoder(kind), data)
    assert apply(replay(world().spec, slots()[:1]), data).void is not None
