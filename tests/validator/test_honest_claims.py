"""Rounds that overlap, seen through heartbeats: whatever happens to leader and uploads, honest work counts whole."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from common.units import Hotkey, RoundId, sha256_hex
from common.wire import Counters, Heartbeat, Phase
from validator.members import Members
from validator.round.tokens import UNSUPPORTED, Terms, proven_rates, round_usual, usual_rate, validated_tokens
from validator.submissions import Held

BEAT_S, TRAIN_S, MERGE_S = 5.0, 60.0, 12.0
SPEEDS = {Hotkey("a"): 1000.0, Hotkey("b"): 1000.0, Hotkey("c"): 1100.0, Hotkey("d"): 900.0, Hotkey("e"): 1950.0}
TARGET = int(sum(SPEEDS.values()) * (TRAIN_S + MERGE_S))
NOBODY: dict[Hotkey, Held] = {}


@dataclass
class Machine:
    """Trains without a pause; ``settled_s`` is when the last mark that a plan named was made."""

    rate: float
    seq: int = 0
    settled_s: float = 0.0
    made_s: float | None = None
    """Mark of this round's final."""

    def beat(self, round_id: int, now_s: float) -> Heartbeat:
        self.seq += 1
        done_s = now_s if self.made_s is None else self.made_s
        return Heartbeat(
            session="ab" * 8,
            seq=self.seq,
            phase=Phase.TRAINING,
            round=round_id,
            revision=None,
            weights_sha256=None,
            round_tokens=self.tokens(done_s),
            round_steps=1,
            ahead_tokens=int(self.rate * (now_s - done_s)),
            tokens_per_s=self.rate,
            loss=None,
            counters=Counters(tokens=int(self.rate * now_s), training_s=now_s, online_s=now_s),
            upload=None,
            note="",
        )

    def tokens(self, until_s: float) -> int:
        return int(self.rate * (until_s - self.settled_s))


@dataclass
class Run:
    machines: dict[Hotkey, Machine] = field(default_factory=lambda: {h: Machine(rate) for h, rate in SPEEDS.items()})
    members: Members = field(default_factory=lambda: Members(20.0))
    now_s: float = 0.0

    def train(self, round_id: int, for_s: float) -> None:
        end_s = self.now_s + for_s
        while self.now_s < end_s:
            for hotkey, machine in self.machines.items():
                self.members.hear(hotkey, machine.beat(round_id, self.now_s), self.now_s)
            self.now_s += BEAT_S

    def round(self, number: int, unnamed: str, held_s: float = 0.0, unheard_s: float = 0.0) -> dict[Hotkey, float]:
        """Share of its claim that counts, of each that the plan names; the round is held open so long, and
        this process heard nobody in the first part of that."""
        self.now_s += unheard_s
        self.train(number, TRAIN_S + held_s - unheard_s)
        claims, round_id = {}, RoundId(number)
        for offset, (hotkey, machine) in enumerate(self.machines.items()):
            machine.made_s = self.now_s - 0.1 * offset
            claims[hotkey] = machine.tokens(machine.made_s)
            self.members.note_receipt(
                hotkey, round_id, sha256_hex(f"{number}{hotkey}".encode()), claims[hotkey], self.now_s
            )
        usual = round_usual(self.members.proven(), self.members.claimed_rates(round_id, self.now_s))
        proven = usual_rate(self.members.proven().values())
        terms = Terms(TARGET, len(claims), 4 * TRAIN_S, 1.1, usual, proven, held_s, unheard_s)
        named = {h: sha256_hex(f"{number}{h}".encode()) for h in claims if h not in unnamed}
        seen = {h: self.members.seen(h, delta) for h, delta in named.items()}
        counted = {h: validated_tokens(claims[h], seen[h], None, terms)[0] for h in named}
        self.train(number, MERGE_S)
        watched = {h: (counted[h], s.proof_s) for h, s in seen.items() if s.proof_s}
        self.members.prove(proven_rates(watched, self.members.proven()))
        self.members.note_committed(round_id, named, named)
        for hotkey, machine in self.machines.items():
            if hotkey in named:
                assert machine.made_s is not None
                machine.settled_s = machine.made_s
            machine.made_s = None
        return {h: counted[h] / claims[h] for h in named}

    def take_over(self) -> None:
        """Another leader: it has the reports' rates, and has heard nobody."""
        proven = self.members.proven()
        self.members = Members(20.0)
        self.members.expect(self.machines, self.now_s)
        self.members.note_earlier(self.machines)
        self.members.prove(proven)


@pytest.mark.parametrize("takeover_in", [None, 3, 4])
@pytest.mark.parametrize("unnamed", ["", "e", "ab"])
def test_every_honest_token_counts_once_rates_are_proven(takeover_in: int | None, unnamed: str) -> None:
    run = Run()
    for number in range(8):
        if number == takeover_in:
            run.take_over()
        shares = run.round(number, unnamed if number == 3 else "")
        if number >= 1:
            assert all(share == 1.0 for share in shares.values()), (number, shares)


def test_a_liar_is_bounded_by_the_time_that_it_was_seen() -> None:
    run = Run()
    for number in range(4):
        run.round(number, "")
    run.machines[Hotkey("d")].settled_s -= 10 * TRAIN_S
    share = run.round(4, "")[Hotkey("d")]
    assert share < 0.35, "it claims eleven rounds' work and was seen for one"


@pytest.mark.parametrize(("takeover", "unheard"), [(False, 0.0), (True, 0.0), (True, 0.5), (True, 1.0)])
@pytest.mark.parametrize("held_s", [120.0, 600.0, 3600.0])
def test_every_honest_token_of_a_round_that_is_held_open_counts(held_s: float, takeover: bool, unheard: float) -> None:
    run = Run()
    for number in range(3):
        run.round(number, "")
    if takeover:
        run.take_over()
    assert set(run.round(3, "", held_s, unheard * held_s).values()) == {1.0}
    assert set(run.round(4, "").values()) == {1.0}


@pytest.mark.parametrize("held_s", [600.0, 3600.0])
def test_one_that_claims_ten_times_in_such_a_round_gets_what_its_time_allows(held_s: float) -> None:
    run, liar = Run(), Hotkey("d")
    for number in range(3):
        run.round(number, "")
    usual = usual_rate(run.members.proven().values())
    assert usual is not None
    honest = run.machines[liar].rate
    run.machines[liar].rate = 10 * honest
    shares = run.round(3, "", held_s)
    longest_s = TRAIN_S + MERGE_S + held_s + 2 * BEAT_S
    assert shares[liar] * 10 * honest <= UNSUPPORTED * usual * longest_s / (TRAIN_S + held_s)
    assert {shares[hotkey] for hotkey in shares if hotkey != liar} == {1.0}


def test_the_facts_of_a_round_count_the_work_ahead_of_its_opening() -> None:
    run = Run()
    run.round(0, "")
    facts = run.members.facts(RoundId(1), NOBODY, run.now_s)
    assert [m.tokens > 0 for m in facts] == [True] * len(SPEEDS)
    assert sum(m.rate for m in facts) == pytest.approx(sum(SPEEDS.values()), rel=0.2)
