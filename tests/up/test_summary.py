"""The arithmetic of summary.json, over a history and reports whose figures are known."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable

import pytest

from common.runlog.entries import EntryData
from common.runlog.replay import Step, history, replay
from common.runlog.state import RunState
from common.units import Uid
from tests.runlog.support import ALICE, MINERS, SPEC, aborted, committed, frozen, genesis_slot, opened, slot, takeover
from tests.runlog.support import member as plan_member
from tests.up.support import member_report, report
from validator.up.merged import merged_members
from validator.up.summary import Summary, describe, summarise

FIRST, SECOND, _ = MINERS
UIDS = {FIRST.hotkey: Uid(2), SECOND.hotkey: Uid(3)}
DENSE_BYTES = 4_000


def a_history() -> list[Step]:
    """One round that merges both miners, one that rejects the second, one that aborts."""

    def first(state: RunState) -> EntryData:
        return frozen(state, plan_member(state, FIRST, tokens=800), plan_member(state, SECOND, tokens=400))

    def second(state: RunState) -> EntryData:
        stray = plan_member(state, SECOND, tokens=500, code="stray")
        return frozen(state, plan_member(state, FIRST, tokens=600), stray)

    story: list[Callable[[RunState], EntryData]] = [
        lambda _: takeover(),
        opened,
        first,
        committed,
        opened,
        second,
        committed,
        opened,
        aborted,
    ]
    slots = [genesis_slot()]
    for entry in story:
        state = replay(SPEC, slots)
        slots.append(slot(state, entry(state), ALICE, term=1))
    return list(history(SPEC, slots))


def summed_up() -> Summary:
    steps = a_history()
    reports = [
        report(0, member_report(FIRST.hotkey), member_report(SECOND.hotkey, tokens_per_s=50.0, tokens_trained=400)),
        report(
            1,
            member_report(FIRST.hotkey, tokens_trained=700, training_ms=7_000, tokens_per_s=140.0, score=900.0),
            member_report(SECOND.hotkey, tokens_per_s=50.0, tokens_trained=500, training_ms=9_000, score=300.0),
            before=4.0,
            after=2.25,
        ),
    ]
    return summarise(
        steps[-1].state, merged_members(steps), reports, UIDS, {Uid(2): 65535, Uid(3): 21845}, DENSE_BYTES, 1.234
    )


def test_the_log_decides_what_was_merged() -> None:
    summary = summed_up()
    assert (summary.rounds_committed, summary.rounds_aborted) == (2, 1)
    assert summary.tokens_merged == 800 + 400 + 600
    assert [miner.tokens_merged for miner in summary.miners] == [1400, 400]
    assert [miner.uid for miner in summary.miners] == [2, 3]


def test_losses_are_those_of_the_first_base_and_the_last_head() -> None:
    summary = summed_up()
    assert (summary.val_loss_first, summary.val_loss_last) == (5.5, 2.25)


def test_shares_are_those_of_the_design() -> None:
    summary = summed_up()
    trained = 800 + 700 + 400 + 500
    assert summary.tokens_trained == trained
    assert summary.survival == pytest.approx(1800 / trained, abs=1e-4)
    assert summary.utilisation == pytest.approx((8 + 7 + 8 + 9) / 40, abs=1e-4)
    # The first miner's median speed is 120 tokens/s, the second's 50; each was online for 20 s.
    assert summary.goodput == pytest.approx(1800 / (120 * 20 + 50 * 20), abs=1e-4)


def test_delta_bytes_are_those_of_merged_deltas_only() -> None:
    summary = summed_up()
    sizes = [len(f"delta of {signer.hotkey}") for signer in (FIRST, SECOND, FIRST)]
    assert summary.delta_bytes == round(sum(sizes) / 3)
    assert summary.compression == pytest.approx(DENSE_BYTES / summary.delta_bytes, abs=0.01)


def test_weights_are_by_uid_and_every_miner_has_one() -> None:
    steps = a_history()
    summary = summarise(steps[-1].state, merged_members(steps), [], UIDS, {Uid(2): 65535, Uid(0): 7}, DENSE_BYTES, 0.0)
    assert summary.weights == {"2": 65535, "3": 0}


def test_a_round_behind_the_last_report_counts_by_its_manifests() -> None:
    steps = a_history()
    reports = [report(0, member_report(FIRST.hotkey, tokens_trained=900), member_report(SECOND.hotkey))]
    summary = summarise(steps[-1].state, merged_members(steps), reports, UIDS, {}, DENSE_BYTES, 0.0)
    assert summary.tokens_trained == (900 + 600) + (800 + 500)


def test_a_round_whose_report_was_lost_is_in_the_next_ones_growth() -> None:
    """Sessions are cumulative: its manifests must not count once more."""
    steps = a_history()
    reports = [report(1, member_report(FIRST.hotkey, tokens_trained=1500), member_report(SECOND.hotkey))]
    summary = summarise(steps[-1].state, merged_members(steps), reports, UIDS, {}, DENSE_BYTES, 0.0)
    assert [miner.tokens_trained for miner in summary.miners] == [1500, 900]  # and at least what was signed


def test_only_the_report_of_a_round_on_revision_0_tells_the_first_loss() -> None:
    steps = a_history()
    reports = [report(1, member_report(FIRST.hotkey), before=4.0, after=2.25)]
    summary = summarise(steps[-1].state, merged_members(steps), reports, UIDS, {}, DENSE_BYTES, 0.0)
    assert (summary.val_loss_first, summary.val_loss_last) == (None, 2.25)


def test_a_share_above_one_is_cut_and_said() -> None:
    steps = a_history()
    reports = [report(0, member_report(FIRST.hotkey, training_ms=11_000))]
    summary = summarise(steps[-1].state, merged_members(steps), reports, UIDS, {}, DENSE_BYTES, 0.0)
    assert summary.utilisation == 1.0
    assert any("utilisation came to 110.00%" in line for line in describe(summary, {}))
    assert "notes" not in json.loads(summary.to_json())


def test_what_the_open_round_has_is_said() -> None:
    steps = a_history()[:-1]  # the last round is open
    reports = [report(1, member_report(FIRST.hotkey, tokens_trained=1_700))]
    summary = summarise(steps[-1].state, merged_members(steps), reports, UIDS, {}, DENSE_BYTES, 0.0)
    assert any("300 tokens trained are of the open round" in note for note in summary.notes), summary.notes
    assert not summed_up().notes


def test_trained_is_at_least_what_signed_manifests_say() -> None:
    """The last report may be a heartbeat behind the last manifest."""
    steps = a_history()
    reports = [
        report(0, member_report(FIRST.hotkey, tokens_trained=800)),
        report(1, member_report(FIRST.hotkey, tokens_trained=500)),
    ]
    summary = summarise(steps[-1].state, merged_members(steps), reports, UIDS, {}, DENSE_BYTES, 0.0)
    assert summary.miners[0].tokens_trained == 800 + 600
    assert summary.survival <= 1


def test_a_run_that_did_nothing_divides_by_nothing() -> None:
    steps = a_history()[:1]
    summary = summarise(steps[-1].state, merged_members(steps), [], UIDS, {}, DENSE_BYTES, 0.0)
    assert (summary.goodput, summary.utilisation, summary.survival, summary.compression) == (0, 0, 0, 0)
    assert summary.val_loss_first is None
    assert "unknown" in "\n".join(describe(summary, {}))


def test_the_file_has_exactly_the_promised_fields() -> None:
    fields = json.loads(summed_up().to_json())
    assert set(fields) == {
        *("schema", "val_loss_first", "val_loss_last", "rounds_committed", "rounds_aborted", "tokens_trained"),
        *("tokens_merged", "goodput", "utilisation", "survival", "delta_bytes", "dense_bytes", "compression"),
        *("weights", "miners", "load_average"),
    }
    assert fields["schema"] == 1
    assert set(fields["miners"][0]) == {"hotkey", "uid", "tokens_trained", "tokens_merged", "score"}
    assert fields["load_average"] == 1.23


def churn() -> list[Step]:
    """An aborted round, its work adopted with more, the other one deferred and late, and a redone plan."""

    def first(state: RunState) -> EntryData:
        return frozen(state, plan_member(state, FIRST, tokens=100))

    def second(state: RunState) -> EntryData:
        slow = plan_member(state, SECOND, tokens=400, code="not_uploaded", decision="deferred")
        return frozen(state, plan_member(state, FIRST, tokens=300), slow)

    def third(state: RunState) -> EntryData:
        [slow] = state.deferred
        late = dataclasses.replace(slow, decision="accepted", code="", tokens=400, weight=1.0, scale=1.0)
        return frozen(state, plan_member(state, FIRST, tokens=200), late)

    story: list[Callable[[RunState], EntryData]] = [
        *(lambda _: takeover(), opened, first, aborted),
        *(opened, second, committed, opened, third, committed),
    ]
    slots = [genesis_slot()]
    for entry in story:
        state = replay(SPEC, slots)
        slots.append(slot(state, entry(state), ALICE, term=1))
    return list(history(SPEC, slots))


def test_work_that_plans_name_again_counts_once_and_late_tokens_by_their_weight() -> None:
    steps = churn()
    assert steps[-1].void is None
    merged = merged_members(steps)
    late = int(400 * SPEC.round.late_weight)
    assert merged.counted == {FIRST.hotkey: 500, SECOND.hotkey: late}
    summary = summarise(steps[-1].state, merged, [], UIDS, {}, DENSE_BYTES, 0.0)
    assert (summary.tokens_merged, summary.tokens_late) == (500 + late, 400)
    assert [miner.tokens_trained for miner in summary.miners] == [300 + 200, 400]
    assert any("400 of them late" in line for line in describe(summary, {}))
