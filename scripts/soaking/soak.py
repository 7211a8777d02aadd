"""A real subnet under seeded chaos: processes are killed, stopped, told to end, cut off and throttled.

Invariants that are checked all along: no slot of the log ever changes, no delta is merged twice, no process dies that
we did not end, no traceback stands in a log, and ``STILL_S`` never pass without a commit. At the end
``brigade run verify`` proves the run. What we killed is started again when its event is over, as a supervisor would.
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

from common.runlog.entries import LeaderChanged
from common.runlog.reader import LogReader
from common.store.reader import StoreReader
from common.units import Sha256
from scripts.soaking.schedule import Event, schedule
from tests.integration.support import SLOWED, spec_for
from tests.support.rig import LOOK_S, SERVED_IP, Rig
from tests.support.rigging import running
from validator.up.client import fetch_status, status_client

STILL_S = 300.0
SLOW_BPS = 200_000.0


class Broken(Exception):
    """An invariant does not hold."""


@dataclass
class Soak:
    """One run. ``names``: miners, then validators."""

    rig: Rig
    miners: list[str]
    validators: list[str]
    counts: Counter[str] = field(default_factory=Counter)
    slots: dict[int, Sha256] = field(default_factory=dict)
    over: list[tuple[float, Event, str]] = field(default_factory=list)
    """When each event that goes on ends, and whom it befell."""
    ended: set[str] = field(default_factory=set)
    """Processes that we ended and did not start again yet."""
    restarts: int = 0
    most_rss_kib: dict[str, int] = field(default_factory=dict)
    longest_still_s: float = 0.0
    takeovers_s: list[float] = field(default_factory=list)
    leader_hurt_s: float | None = None
    loss: tuple[float | None, float | None] = (None, None)

    def run(self, events: Sequence[Event], seconds: float) -> None:
        """Live through the events. Raises ``Broken``."""
        self._start()
        began_s = moved_s = time.monotonic()
        waiting, head, terms = list(events), 0, 0
        while (now_s := time.monotonic() - began_s) < seconds:
            self._due(now_s, waiting)
            self.rig.read_log()
            if self.rig.head > head:
                head, moved_s = self.rig.head, time.monotonic()
            self.longest_still_s = max(self.longest_still_s, time.monotonic() - moved_s)
            if time.monotonic() - moved_s > STILL_S:
                raise Broken(f"no commit for {STILL_S:g} s")
            terms = self._takeovers(terms)
            self._processes()
            time.sleep(LOOK_S)
        self._history()
        self._losses()

    def _start(self) -> None:
        for name in self.validators:
            self.rig.start_validator(name=name)
        for name in self.miners:
            self.rig.start_miner(name, *SLOWED)

    def _due(self, now_s: float, waiting: list[Event]) -> None:
        for item in [one for one in self.over if one[0] <= now_s]:
            self.over.remove(item)
            self._undo(item[1], item[2])
            self._history()
        if waiting and waiting[0].at_s <= now_s:
            event = waiting.pop(0)
            victim = self._leader() if event.victim == "leader" else event.victim
            if any(hurt == victim for _, _, hurt in self.over):
                self.counts["skipped: hurt already"] += 1
                return
            self.counts[f"{event.kind} {'leader' if victim == self._leader() else victim.split('-')[0]}"] += 1
            if victim == self._leader():
                self.leader_hurt_s = time.monotonic()
            self._do(event, victim)
            self.over.append((now_s + event.lasts_s, event, victim))

    def _leader(self) -> str:
        leader = self.rig.state.leader if self.rig.state else None
        wallets = self.rig.wallets.validators
        return next((wallet.name for wallet in wallets if wallet.hotkey_ss58 == leader), self.validators[0])

    def _do(self, event: Event, victim: str) -> None:
        part, line = self.rig.parts[victim], self.rig.lines[victim]
        if event.kind in ("kill", "terminate"):
            self.ended.add(victim)
            part.signal(signal.SIGKILL if event.kind == "kill" else signal.SIGTERM)
        elif event.kind == "stop":
            part.signal(signal.SIGSTOP)
        elif event.kind == "cut":
            line.cut()
        elif event.kind == "hole":
            line.swallow()
        else:
            line.link.up.rate_bps = line.link.down.rate_bps = SLOW_BPS

    def _undo(self, event: Event, victim: str) -> None:
        part, line = self.rig.parts[victim], self.rig.lines[victim]
        if event.kind in ("kill", "terminate"):
            part.kill()
            self.ended.discard(victim)
            self.restarts += 1
            if victim in self.validators:
                self.rig.start_validator(name=victim)
            else:
                self.rig.start_miner(victim, *SLOWED)
        elif event.kind == "stop":
            part.signal(signal.SIGCONT)
        elif event.kind == "cut":
            line.cut(False)
        elif event.kind == "hole":
            line.swallow(False)
        else:
            line.link.up.rate_bps = line.link.down.rate_bps = None

    def _takeovers(self, terms: int) -> int:
        found = sum(isinstance(entry.data, LeaderChanged) for entry in self.rig.entries)
        if found > terms and self.leader_hurt_s is not None:
            self.takeovers_s.append(time.monotonic() - self.leader_hurt_s)
            self.leader_hurt_s = None
        return found

    def _processes(self) -> None:
        for name, part in self.rig.parts.items():
            if name in self.ended:
                continue
            if part.ended() is not None:
                raise Broken(f"{name} ended by itself with {part.ended()}")
            try:
                words = Path(f"/proc/{part.process.pid}/status").read_text().split()
            except OSError:
                continue
            if "VmRSS:" in words:
                kib = int(words[words.index("VmRSS:") + 1])
                self.most_rss_kib[name] = max(kib, self.most_rss_kib.get(name, 0))

    def _history(self) -> None:
        """Read the whole log anew: what stood there still stands there."""
        for step in LogReader(StoreReader(self.rig.store), self.rig.spec).steps():
            seq = step.state.next_seq - 1
            if self.slots.setdefault(seq, step.state.head_sha256) != step.state.head_sha256:
                raise Broken(f"slot {seq} of the log has changed")
        merged = Counter(
            (member.hotkey, member.delta.sha256)
            for plan in self.rig.committed()
            for members in plan.members.values()
            for member in members
            if member.decision == "accepted"
        )
        for what, times in merged.items():
            if times > 1:
                raise Broken(f"a delta of {what[0]} was merged {times} times")
        for path in sorted(self.rig.logs.glob("**/*")):
            if path.is_file() and "Traceback (most recent call last)" in path.read_text(errors="replace"):
                raise Broken(f"a traceback stands in {path}")

    def _losses(self) -> None:
        with status_client() as client:
            for name in self.validators:
                status = fetch_status(client, f"http://{SERVED_IP}:{self.rig.ports[name]}")
                if status is not None and status.leading:
                    self.loss = (status.heldout_loss_first, status.heldout_loss_head)

    def summary(self) -> dict[str, Any]:
        """What it came to."""
        state = self.rig.state
        return {
            "events": dict(self.counts),
            "commits": self.rig.head,
            "aborts": state.rounds_aborted if state else 0,
            "terms": state.term if state else 0,
            "voids": self.rig.voids,
            "tokens_merged": state.tokens_merged if state else 0,
            "longest_without_commit_s": round(self.longest_still_s, 1),
            "takeovers_s": [round(one, 1) for one in self.takeovers_s],
            "restarts_by_us": self.restarts,
            "loss": self.loss,
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
    options = parser.parse_args()
    folder = (options.dir or Path(tempfile.mkdtemp(prefix="brigade-soak-"))).absolute()
    with running(folder, spec_for(options.miners), options.miners, options.validators) as rig:
        miners = [wallet.name for wallet in rig.wallets.miners]
        validators = [wallet.name for wallet in rig.wallets.validators]
        soak, why = Soak(rig, miners, validators), ""
        try:
            soak.run(schedule(options.seed, options.minutes, miners, validators), options.minutes * 60)
        except Broken as broken:
            why = str(broken)
        except KeyboardInterrupt:
            why = "interrupted"
        verified = rig.verify()
        if not why and verified.returncode:
            why = f"brigade run verify: {verified.stderr.strip()}"
        first, last = soak.loss
        if not why and (first is None or last is None or last >= first):
            why = f"the held-out loss did not fall: {first} → {last}"
    told = {"ok": not why, "why": why, "folder": str(folder), **soak.summary()}
    print(json.dumps(told) if options.json else "\n".join(f"{name}: {value}" for name, value in told.items()))
    return 1 if why else 0


if __name__ == "__main__":
    sys.exit(main())
