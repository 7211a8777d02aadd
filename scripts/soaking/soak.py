"""A real subnet under seeded chaos: processes are killed, stopped, told to end, cut off and throttled.

Invariants that are checked all along: no slot of the log ever changes, no delta is merged twice, no process ends that
we did not end, who is told to end ends well, nobody is convicted, no traceback and no error stands in a log, and
``STILL_S`` never pass without a commit. At the end ``brigade run verify`` proves the run against its bucket and the
heads on chain, the loss has fallen, in the second half of the run as well, and where miners reduce some of their means
were taken.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.defaults import BUTTERFLY, LEADER, REDUCE_KINDS, REDUNDANCY
from common.runlog.entries import LeaderChanged
from scripts.soaking.faults import ENDS, heal, hurt
from scripts.soaking.invariants import Broken, History, check_logs
from scripts.soaking.reductions import Reductions
from scripts.soaking.schedule import Event, schedule
from scripts.soaking.takeovers import play_all
from tests.integration.support import SLOWED, SPEED, spec_for
from tests.support.rig import LOOK_S, Rig
from tests.support.rigging import running

STILL_S = 300.0
LOSS_EVERY_S = 15.0
LEADER_GONE = ("kill", "terminate", "stop", "cut", "hole")
"""What another leader has to take over for, if it lasts."""


@dataclass
class Soak:
    """One run. ``miners``, ``validators``: their names."""

    rig: Rig
    miners: list[str]
    validators: list[str]
    counts: Counter[str] = field(default_factory=Counter)
    history: History = field(default_factory=History)
    over: list[tuple[float, Event, str]] = field(default_factory=list)
    """When each event that goes on ends, and whom it befell."""
    said: dict[str, int] = field(default_factory=dict)
    """Bytes that each process's file had when it was started again."""
    restarts: int = 0
    most_rss_kib: dict[str, int] = field(default_factory=dict)
    longest_still_s: float = 0.0
    takeovers_s: list[float] = field(default_factory=list)
    leader_hurt_s: float | None = None
    losses: list[tuple[float, float]] = field(default_factory=list)
    """Seconds from the start, nats per token held out."""
    online_s: float = 0.0
    """Of all miners together, from the first round on: running and not stopped."""

    def __post_init__(self) -> None:
        self.reductions = Reductions(self.rig.spec)

    def run(self, events: Sequence[Event], seconds: float) -> None:
        """Live through the events. Raises ``Broken``."""
        self._start()
        self._first_commit()
        began_s = moved_s = looked_s = time.monotonic()
        waiting, head, terms = list(events), 0, 0
        while (now_s := time.monotonic() - began_s) < seconds:
            self._due(now_s, waiting)
            if "storage" not in self._hurt():
                self.rig.read_log()
            if self.rig.head > head:
                head, moved_s = self.rig.head, time.monotonic()
            self.longest_still_s = max(self.longest_still_s, time.monotonic() - moved_s)
            if time.monotonic() - moved_s > STILL_S:
                raise Broken(f"no commit for {STILL_S:g} s")
            terms = self._takeovers(terms)
            self._processes()
            self._note_loss(now_s)
            looked_s = self._count_online(looked_s)
            time.sleep(LOOK_S)
        self._check()

    def _start(self) -> None:
        for name in self.validators:
            self.rig.start_validator(name=name)
        for name in self.miners:
            self.rig.start_miner(name, *SLOWED)

    def _first_commit(self) -> None:
        """Peace until the run is under way, however slow the machine: the events' clock begins then."""
        began_s = time.monotonic()
        while self.rig.head == 0:
            self.rig.read_log()
            self._processes()
            if time.monotonic() - began_s > STILL_S:
                raise Broken(f"no first commit within {STILL_S:g} s")
            time.sleep(LOOK_S)

    def _due(self, now_s: float, waiting: list[Event]) -> None:
        for item in [one for one in self.over if one[0] <= now_s]:
            _, event, victim = item
            self._say(now_s, f"over: {event.kind} {victim}")
            self._ended_well(event, victim)
            self.said[victim] = self._words(victim) if event.kind in ENDS else self.said.get(victim, 0)
            heal(self.rig, event.kind, victim)
            self.restarts += event.kind in ENDS
            self.over.remove(item)
            self._check()
        if waiting and waiting[0].at_s <= now_s:
            self._begin(waiting.pop(0), now_s)

    def _begin(self, event: Event, now_s: float) -> None:
        victim = self._leader() if event.victim == "leader" else event.victim
        if victim in self._hurt():
            self.counts["skipped: hurt already"] += 1
            return
        leads = victim == self._leader()
        self.counts[f"{event.kind} {'leader' if leads else victim.split('-')[0]}"] += 1
        self._say(now_s, f"{event.kind} {victim}{', who leads,' if leads else ''} for {event.lasts_s:.0f} s")
        if leads and event.kind in LEADER_GONE:
            self.leader_hurt_s = time.monotonic()
        hurt(self.rig, event.kind, victim)
        self.over.append((now_s + event.lasts_s, event, victim))

    def _hurt(self, *kinds: str) -> set[str]:
        """Whom an event befalls right now: of these kinds, or of any."""
        return {victim for _, event, victim in self.over if not kinds or event.kind in kinds}

    def _leader(self) -> str:
        leader = self.rig.state.leader if self.rig.state else None
        wallets = self.rig.wallets.validators
        return next((wallet.name for wallet in wallets if wallet.hotkey_ss58 == leader), self.validators[0])

    def _takeovers(self, terms: int) -> int:
        found = sum(isinstance(entry.data, LeaderChanged) for entry in self.rig.entries)
        if found > terms and self.leader_hurt_s is not None:
            self.takeovers_s.append(time.monotonic() - self.leader_hurt_s)
            self.leader_hurt_s = None
        return found

    def _say(self, now_s: float, text: str) -> None:
        with (self.rig.logs / "soak.txt").open("a") as file:
            file.write(f"{now_s:7.1f} s, revision {self.rig.head}: {text}\n")

    # The invariants.

    def _ended_well(self, event: Event, victim: str) -> None:
        code = self.rig.parts[victim].ended() if event.kind == "terminate" else None
        unready = code == -signal.SIGTERM and self._words(victim) == self.said.get(victim, 0)
        if code not in (None, 0) and not unready:
            raise Broken(f"{victim} ended with {code} when it was told to end")

    def _words(self, name: str) -> int:
        """Bytes that it has said; a process that has said nothing yet has no handlers for signals either."""
        path = self.rig.logs / f"{name}.err"
        return path.stat().st_size if path.exists() else 0

    def _processes(self) -> None:
        gone = self._hurt(*ENDS)
        if "storage" not in gone and self.rig.server.returncode() is not None:
            raise Broken(f"the storage ended by itself with {self.rig.server.returncode()}")
        for name, part in (*self.rig.parts.items(), ("chain", self.rig.chain)):
            if name in gone:
                continue
            if part.ended() is not None:
                raise Broken(f"{name} ended by itself with {part.ended()}")
            self._note_memory(name, part.process.pid)

    def _note_memory(self, name: str, pid: int) -> None:
        words = Path(f"/proc/{pid}/status").read_text().split()
        if "VmRSS:" in words:
            kib = int(words[words.index("VmRSS:") + 1])
            self.most_rss_kib[name] = max(kib, self.most_rss_kib.get(name, 0))

    def _check(self) -> None:
        """After each event: the log, what was merged, who was convicted, what the processes said."""
        self.reductions.gather(self.rig.logs)
        if "storage" not in self._hurt():
            self.history.check(self.rig)
        check_logs(self.rig.logs)

    def _note_loss(self, now_s: float) -> None:
        leader = self._leader()
        due = now_s - (self.losses[-1][0] if self.losses else -LOSS_EVERY_S) >= LOSS_EVERY_S
        status = self.rig.status_of(leader) if due and leader not in self._hurt() else None
        if status is None or status.heldout_loss_head is None or status.heldout_loss_first is None:
            return
        if not self.losses:
            self.losses.append((0.0, status.heldout_loss_first))
        self.losses.append((now_s, status.heldout_loss_head))

    def _count_online(self, looked_s: float) -> float:
        """Add the time since the last look; the time of this one."""
        now_s = time.monotonic()
        if self.rig.state is not None and self.rig.state.next_round > 1:
            running = set(self.miners) - self._hurt(*ENDS, "stop")
            self.online_s += (now_s - looked_s) * len(running)
        return now_s

    def loss_problem(self) -> str:
        """Why the loss does not count as falling; empty when it falls."""
        values = [loss for _, loss in self.losses]
        half = len(values) // 2
        if half < 2:
            return "the held-out loss was not seen often enough"
        early, late = min(values[:half]), min(values[half:])
        falls = late < early and values[-1] < values[0]
        return "" if falls else f"the held-out loss did not fall: {values[0]:.3f}, {early:.3f}, {late:.3f}"

    def summary(self) -> dict[str, Any]:
        """What it came to. Goodput: merged over what the miners could train while they ran, at the speed they keep."""
        state = self.rig.state
        merged, could = (state.tokens_merged if state else 0), self.online_s * SPEED
        told = {"revision 0" if at == 0 else f"{at_s:.0f} s": loss for at, (at_s, loss) in enumerate(self.losses)}
        shown = list(told)[:: max(1, len(told) // 10)]
        return {
            "events": dict(self.counts),
            "commits": self.rig.head,
            "aborts": state.rounds_aborted if state else 0,
            "terms": state.term if state else 0,
            "voids": self.rig.voids,
            "tokens_merged": merged,
            **self.reductions.summary(self.rig.entries, len(self.history.convicted)),
            "goodput": round(merged / could, 4) if could else 0.0,
            "longest_without_commit_s": round(self.longest_still_s, 1),
            "takeovers_s": [round(one, 1) for one in self.takeovers_s],
            "restarts_by_us": self.restarts,
            "loss": {name: round(told[name], 3) for name in (*shown, *list(told)[-1:])},
            "most_rss_mib": {name: kib // 1024 for name, kib in self.most_rss_kib.items()},
        }


def main() -> int:
    """0: clean; 1: an invariant broke."""
    parser = argparse.ArgumentParser("scripts/soak", description="A real subnet under seeded chaos.")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--miners", type=int, default=4)
    parser.add_argument("--validators", type=int, default=2)
    parser.add_argument("--dir", type=Path, help="new folder of everything; a temporary one if not given")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--takeovers", action="store_true", help="instead: every fault of a leader in every phase")
    parser.add_argument("--round-s", type=float, help="with --takeovers: length of a round; 24 if not given")
    parser.add_argument("--reduce", choices=REDUCE_KINDS, default=LEADER, help="who adds the deltas up")
    options = parser.parse_args()
    if options.reduce == BUTTERFLY and options.miners < REDUNDANCY:
        parser.error(f"--reduce {BUTTERFLY} needs --miners {REDUNDANCY} or more: so many make each mean")
    if options.round_s is not None and not options.takeovers:
        parser.error("--round-s is for --takeovers; chaos has rounds of 3 s")
    folder = (options.dir or Path(tempfile.mkdtemp(prefix="brigade-soak-"))).absolute()
    if options.takeovers:
        why = play_all(folder, options.round_s or 24.0, options.reduce)
        print(why or "all held")
        return 1 if why else 0
    return soak(folder, options)


def soak(folder: Path, options: argparse.Namespace) -> int:
    """One run of chaos, and what it came to; the exit code."""
    spec = spec_for(options.miners, reduce=options.reduce)
    with running(folder, spec, options.miners, options.validators, cold=True) as rig:
        miners = [wallet.name for wallet in rig.wallets.miners]
        validators = [wallet.name for wallet in rig.wallets.validators]
        run, why = Soak(rig, miners, validators), ""
        try:
            run.run(schedule(options.seed, options.minutes, miners, validators), options.minutes * 60)
        except Broken as broken:
            why = str(broken)
        except KeyboardInterrupt:
            why = "interrupted"
        verified = rig.verify("--chain", f"ws://127.0.0.1:{rig.ports['chain']}", "--netuid", str(rig.spec.netuid))
        if not why and verified.returncode:
            why = f"brigade run verify: {verified.stderr.strip()}"
        run.reductions.gather(rig.logs)
        why = why or run.loss_problem() or run.reductions.problem(rig.entries)
    told = {"ok": not why, "why": why, "folder": str(folder), "reduce": options.reduce, **run.summary()}
    print(json.dumps(told) if options.json else "\n".join(f"{name}: {value}" for name, value in told.items()))
    return 1 if why else 0


if __name__ == "__main__":
    sys.exit(main())
