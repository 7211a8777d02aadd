"""The gates against the behaviours they exist for, from 1 to 256 members."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from common.codec.container import decode, encode
from common.codec.params import F32
from common.merge.gates import Accepted, Candidate, Decision, RejectedDelta, check_delta, decide
from common.merge.group import GroupStats
from common.units import Revision
from tests.merge import groups
from tests.merge.groups import BASE, POLICY, candidates, codec

COUNT = 16 * 4096


def honest(count: int, density: int = 64) -> list[F32]:
    """Deltas with a common signal, through the codec; pairwise cosines of about .1 at density 64."""
    return list(groups.honest(count, COUNT, density))


def through(values: np.ndarray, density: int = 64) -> F32:
    data = encode(values.astype(np.float32), codec(density))
    return decode(data, expect=codec(density), count=COUNT)


def group_stats(deltas: Sequence[F32]) -> GroupStats:
    return groups.group_stats(deltas, COUNT)


def judge(deltas: list[F32], who: list[Candidate] | None = None) -> tuple[Decision, ...]:
    return decide(who or candidates(len(deltas)), group_stats(deltas), POLICY, {BASE: 1.0})


def codes(decisions: tuple[Decision, ...]) -> list[str]:
    return [d.code if isinstance(d, RejectedDelta) else "" for d in decisions]


@pytest.mark.parametrize("density", [64, 512, 4096])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 16])
def test_honest_deltas_pass_unclipped(count: int, density: int) -> None:
    for decision in judge(honest(count, density)):
        assert isinstance(decision, Accepted), decision
        assert (decision.weight, decision.clip, decision.scale) == (1000.0, 1.0, 1000.0)


def test_256_honest_with_the_usual_suspects() -> None:
    deltas = honest(256)
    for i in range(0, 40, 2):
        deltas[i] = through(-deltas[i] * 3)
    deltas[101] = deltas[100].copy()
    found = codes(judge(deltas))
    assert found[:40:2] == ["wrong_direction"] * 20
    assert found[101] == "duplicate"
    assert all(code == "" for i, code in enumerate(found) if i != 101 and (i >= 40 or i % 2))


@pytest.mark.parametrize("count", [3, 4, 5, 8])
@pytest.mark.parametrize("density", [64, 4096])
def test_a_sign_flip_is_named_by_the_majority(count: int, density: int) -> None:
    deltas = honest(count, density)
    deltas[1] = -deltas[1]
    decisions = judge(deltas)
    assert codes(decisions) == ["", "wrong_direction", *[""] * (count - 2)]
    assert "cosine -" in decisions[1].reason


def test_flips_of_less_than_half_are_named_even_when_they_are_large() -> None:
    deltas = honest(7)
    for i in (0, 3, 6):
        deltas[i] = -deltas[i] * np.float32(8)
    assert codes(judge(deltas)) == ["wrong_direction", "", "", "wrong_direction", "", "", "wrong_direction"]


def test_two_that_disagree_both_stay() -> None:
    deltas = honest(2)
    deltas[1] = -deltas[1]
    decisions = judge(deltas)
    assert codes(decisions) == ["", ""]
    assert all("neither side is a majority" in decision.reason for decision in decisions)


def test_two_against_two_name_nobody() -> None:
    deltas = honest(4)
    deltas[2], deltas[3] = -deltas[2], -deltas[3]
    assert codes(judge(deltas)) == [""] * 4


def test_a_crowd_of_one_coldkey_does_not_outvote_the_others() -> None:
    deltas = honest(8)
    for i in range(5):
        deltas[i] = -deltas[i]
    coldkeys = ["crowd"] * 5 + ["a", "b", "c"]
    assert codes(judge(deltas, candidates(8, coldkeys))) == ["wrong_direction"] * 5 + [""] * 3


def test_an_inflated_norm_is_clipped_then_rejected() -> None:
    deltas = honest(5)
    deltas[0], deltas[1] = deltas[0] * np.float32(5), deltas[1] * np.float32(50)
    first, second, *others = judge(deltas)
    assert isinstance(first, Accepted)
    assert first.clip == pytest.approx(0.4, abs=0.02)
    assert first.scale == float(np.float32(first.weight) * np.float32(first.clip))
    assert isinstance(second, RejectedDelta)
    assert (second.code, "times the usual" in second.reason) == ("norm_too_large", True)
    assert all(isinstance(other, Accepted) and other.clip == 1 for other in others)


def test_the_short_drips_of_the_dead_do_not_make_a_survivors_long_work_an_attack() -> None:
    """Noisy steps add up like a random walk: a hundred times the tokens, ten times the norm."""
    deltas = [delta * np.float32(0.02) for delta in honest(8)] + [honest(9)[8]]
    tokens = [10] * 8 + [10 * 50 * 50]
    assert codes(judge(deltas, [replace(one, tokens=10) for one in candidates(9)]))[8] == "norm_too_large"
    mixed = [replace(one, tokens=count) for one, count in zip(candidates(9), tokens, strict=True)]
    survivor = judge(deltas, mixed)[8]
    assert isinstance(survivor, Accepted)
    assert survivor.clip == 1


@pytest.mark.parametrize("count", [1, 2])
def test_too_few_deltas_have_no_usual_norms(count: int) -> None:
    deltas = honest(count)
    deltas[0] = deltas[0] * np.float32(100)
    unmeasured = judge(deltas)[0]
    assert isinstance(unmeasured, Accepted)
    assert unmeasured.clip == 1
    assert "too few deltas" in unmeasured.reason


@pytest.mark.parametrize("disguise", ["exact", "noise", "scaled", "flipped"])
def test_the_later_of_two_copies_loses(disguise: str) -> None:
    deltas = honest(4)
    rng = np.random.default_rng(1)
    noise = (1 + 0.4 * rng.standard_normal(COUNT)).astype(np.float32)
    copies = {"exact": deltas[3], "noise": deltas[3] * noise, "scaled": deltas[3] / 3, "flipped": -deltas[3]}
    deltas[0] = copies[disguise].astype(np.float32)
    who = candidates(4)
    who[0] = replace(who[0], received=99)
    decision = judge(deltas, who)[0]
    assert isinstance(decision, RejectedDelta)
    assert decision.code == "duplicate"
    assert "hot3" in decision.reason


def test_a_dense_copy_with_a_little_noise_is_found_by_its_cosine() -> None:
    deltas = honest(4, 4096)
    deltas[2] = (deltas[1] + 1e-4 * np.random.default_rng(2).standard_normal(COUNT)).astype(np.float32)
    assert codes(judge(deltas)) == ["", "", "duplicate", ""]


def test_copies_do_not_vote() -> None:
    """Five copies of a flipped delta would be the majority if they counted."""
    deltas = honest(4)
    deltas += [-deltas[0]] * 5
    deltas[0] = honest(10)[9]
    assert codes(judge(deltas)) == ["", "", "", "", "wrong_direction", *["duplicate"] * 4]


def test_facts_about_one_delta() -> None:
    deltas = honest(6)
    deltas[0] = np.zeros(COUNT, dtype=np.float32)
    deltas[1] = deltas[1].copy()
    deltas[1][5] = np.nan
    who = candidates(6)
    who[2], who[3] = replace(who[2], base=Revision(3)), replace(who[3], tokens=0)
    decisions = judge(deltas, who)
    assert codes(decisions) == ["zero_delta", "non_finite", "base_mismatch", "no_tokens", "", ""]
    assert "revision 3; this plan takes 7" in decisions[2].reason
    assert [found and found.code for found in map(check_delta, deltas[:3])] == ["zero_delta", "non_finite", None]


def test_deltas_on_an_older_base_count_for_less() -> None:
    who = candidates(3)
    who[0] = replace(who[0], base=Revision(6))
    decisions = decide(who, group_stats(honest(3)), POLICY, {BASE: 1.0, Revision(6): 0.5})
    assert [d.weight for d in decisions if isinstance(d, Accepted)] == [500.0, 1000.0, 1000.0]


def test_newcomers_together_weigh_little_beside_others() -> None:
    who = [replace(one, newcomer=i >= 2) for i, one in enumerate(candidates(5))]
    decisions = judge(honest(5), who)
    assert [d.weight for d in decisions if isinstance(d, Accepted)] == pytest.approx([1000, 1000, *[500 / 3] * 3])
    assert "never merged before" in decisions[4].reason
    everybody = judge(honest(5), [replace(one, newcomer=True) for one in who])
    assert [d.weight for d in everybody if isinstance(d, Accepted)] == [1000.0] * 5


def test_no_candidates_no_decisions() -> None:
    assert decide([], group_stats([]), POLICY, {BASE: 1.0}) == ()
