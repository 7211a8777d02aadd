"""Scenario files: every field is checked, and no bytes break the reader."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import OperatorError
from common.units import RoundId
from validator.simulator.scenario import (
    FOREVER,
    KINDS,
    PHASES,
    Fault,
    Moment,
    Target,
    explain_kinds,
    parse_scenario,
    read_scenario,
)


def test_a_fault_says_what_whom_when_how_long_and_how_much() -> None:
    text = b'[[fault]]\nkind = "link_slow"\ntarget = "miner:3"\nstart = 12\nduration = 5.5\nsize = 0.25\n'
    assert parse_scenario(text) == (Fault("link_slow", Target("miner", 3.0), 12.0, 5.5, 0.25),)


def test_what_is_left_out_is_the_kinds_own() -> None:
    found = parse_scenario(b'[[fault]]\nkind = "scale"\ntarget = "share:0.25"\n[[fault]]\nkind = "storage_down"\n')
    assert found[0] == Fault("scale", Target("share", 0.25), 0.0, 600.0, 100.0)
    assert found[1] == Fault("storage_down", Target("storage"), 0.0, 30.0, 1.0)


def test_a_fault_may_begin_with_a_phase() -> None:
    found = parse_scenario(b'[[fault]]\nkind = "die"\ntarget = "validator"\nstart = { round = 2, phase = "frozen" }\n')
    assert found == (Fault("die", Target("validator"), Moment(RoundId(2), "frozen"), FOREVER, 1.0),)


BAD = {
    "not TOML": b"[[fault",
    "unknown x": b"x = 1",
    "kind must be one of": b"[[fault]]\n",
    "target must be one of": b'[[fault]]\nkind = "die"\ntarget = "storage"\n',
    "needs a number": b'[[fault]]\nkind = "die"\ntarget = "miner"\n',
    "a share lies in": b'[[fault]]\nkind = "die"\ntarget = "share:1.5"\n',
    "counts from 0": b'[[fault]]\nkind = "die"\ntarget = "miner:-1"\n',
    "has no number": b'[[fault]]\nkind = "die"\ntarget = "leader:1"\n',
    "size means nothing": b'[[fault]]\nkind = "die"\ntarget = "miner:1"\nsize = 2\n',
    "duration must be": b'[[fault]]\nkind = "die"\ntarget = "miner:1"\nduration = -2\n',
    "start must be": b'[[fault]]\nkind = "die"\ntarget = "miner:1"\nstart = "soon"\n',
    "start names a round": b'[[fault]]\nkind = "die"\ntarget = "miner:1"\nstart = { round = 1, phase = "lunch" }\n',
    "unknown when": b'[[fault]]\nkind = "die"\ntarget = "miner:1"\nwhen = 1\n',
}


@pytest.mark.parametrize("told", BAD)
def test_a_bad_scenario_says_what_is_wrong(told: str) -> None:
    with pytest.raises(OperatorError, match=told):
        parse_scenario(BAD[told])


@given(st.binary(max_size=200))
def test_the_reader_is_total(data: bytes) -> None:
    try:
        parse_scenario(data)
    except OperatorError:
        return


VALUES = st.sampled_from(
    [
        *(f'"{name}"' for name in KINDS),
        *(f'"{target}"' for target in ("miner:1", "miner:nan", "share:inf", "share:0.5", "group:1e9", "validator", "")),
        *(f'{{ round = 1, phase = "{phase}" }}' for phase in PHASES),
        *("1", "-1", "1e400", "nan", "inf", "true", "[]", "{}", '"x"', "1979-05-27"),
    ]
)
NAMES = st.sampled_from(["kind", "target", "start", "duration", "size", "x"])


@given(st.dictionaries(NAMES, VALUES, max_size=6))
def test_the_reader_is_total_on_any_table(table: dict[str, str]) -> None:
    text = "[[fault]]\n" + "\n".join(f"{name} = {value}" for name, value in table.items())
    try:
        (fault,) = parse_scenario(text.encode())
    except OperatorError:
        return
    assert fault.kind in KINDS
    assert fault.duration_s >= 0
    assert 0 <= fault.size < 1e9


def test_every_kind_is_explained() -> None:
    assert all(f"{name}: " in explain_kinds() for name in KINDS)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=r"nowhere\.toml"):
        read_scenario(tmp_path / "nowhere.toml")
