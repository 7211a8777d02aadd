"""The health detectors on a few seeds of the table; the full figures come from ``brigade simulate --health``."""

from __future__ import annotations

import json

import pytest

from common.errors import OperatorError
from common.units import RoundId
from validator.health.findings import Blame
from validator.simulator.health.breaks import BREAKS
from validator.simulator.health.breaks import figures as break_figures
from validator.simulator.health.breaks import play as play_breaks
from validator.simulator.health.cli import measured, parse_seeds, rows
from validator.simulator.health.table import TABLE, figures, play
from validator.simulator.scenario import Fault, Moment, Target, parse_scenario

SEEDS = range(2)
FOUND = [row for row in TABLE if row.kind is not None]
BLAMELESS = [row for row in TABLE if row.blame in (Blame.SELF, Blame.STORAGE)]


@pytest.mark.parametrize("row", FOUND, ids=lambda row: row.name)
def test_the_faults_of_the_table_are_found_and_put_right(row) -> None:  # type: ignore[no-untyped-def]
    found = figures(row, [play(row, seed) for seed in SEEDS])
    assert found.detected == 1.0
    assert found.right == 1.0
    assert found.quarantine_rate == 0.0


@pytest.mark.parametrize("row", BLAMELESS, ids=lambda row: row.name)
def test_for_what_is_no_miners_fault_none_is_blamed(row) -> None:  # type: ignore[no-untyped-def]
    found = figures(row, [play(row, seed) for seed in SEEDS])
    assert found.blamed == 0
    assert found.suspended == 1.0


def test_the_same_seed_gives_the_same_figures_on_any_number_of_cores() -> None:
    faults = (Fault("slow_uplink", Target("miner", 5.0), Moment(RoundId(30), "open"), 1e9, 0.4),)
    told = measured(faults, None, range(2), as_json=True)
    (row,) = rows(faults)
    alone = figures(row, [play(row, seed) for seed in range(2)])
    assert json.loads(told)["faults"] == [json.loads(json.dumps(alone.to_table()))]


@pytest.mark.parametrize("text", ["", "5-2", "-1", "a-b", "0-1000000"])
def test_bad_seeds_are_told(text: str) -> None:
    with pytest.raises(OperatorError, match="--seeds"):
        parse_seeds(text)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('kind = "die"\ntarget = "miner:1"\nstart = { round = 30 }', "no fault of rates"),
        ('kind = "slow_uplink"\ntarget = "miner:1"\nstart = 12', "counts whole rounds"),
    ],
)
def test_a_scenario_that_is_none_of_rates_is_refused(text: str, told: str) -> None:
    with pytest.raises(OperatorError, match=told):
        rows(parse_scenario(f"[[fault]]\n{text}\n".encode()))


@pytest.mark.parametrize("row", BREAKS, ids=lambda row: row.name)
def test_what_breaks_or_is_claimed_is_found_and_nobody_healthy_is_blamed(row) -> None:  # type: ignore[no-untyped-def]
    found = break_figures(row, [play_breaks(row, seed) for seed in SEEDS])
    assert found.blamed == 0
    if row.kind is not None:
        assert found.found == 1.0
    if row.named:
        assert found.together is not None
        assert found.together <= 4, "one thing that breaks, not eight"


def test_a_scenario_of_breaks_is_one_row_of_its_own() -> None:
    faults = parse_scenario(b'[[fault]]\nkind = "flap"\ntarget = "miner:1"\nstart = { round = 30 }\nsize = 0.9\n')
    told = json.loads(measured(faults, None, range(2), as_json=True))
    assert told["faults"] == []
    (row,) = told["breaks"]
    assert (row["found"], row["blamed"]) == (1.0, 0)


@pytest.mark.parametrize("other", ["liar", "slow_uplink"])
def test_what_breaks_in_two_ways_or_is_slow_as_well_is_two_scenarios(other: str) -> None:
    text = "".join(
        f'[[fault]]\nkind = "{kind}"\ntarget = "miner:1"\nstart = {{ round = 30 }}\n' for kind in ("flap", other)
    )
    with pytest.raises(OperatorError, match="one scenario for each"):
        measured(parse_scenario(text.encode()), None, range(2), as_json=True)
