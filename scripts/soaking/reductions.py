"""What became of the means that miners were asked for in a soak: from the log, and from the events of the leaders.

What was taken stands in the commits. What a leader checked, and whether it threw all means away, only it knows: it says
so in events, of which one file a process holds the newest. So they are gathered while the run goes on.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.runlog.entries import Entry, RevisionCommitted
from common.spec import RunSpec

REDUCED, DROPPED = "reduced", "means_dropped"
"""Events of a leader: it put means together; the merge of them did harm, and it computed all of them again."""
NOTHING_TAKEN = "no partition was taken from miners in the whole run: the butterfly was not tested"


@dataclass
class Reductions:
    """Of a run of ``spec``; says nothing where the leader adds up."""

    spec: RunSpec
    events: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By the line that holds it, its time included, so that each counts once."""

    def gather(self, logs: Path) -> None:
        """Take in the events that are in the files of this folder by now."""
        if self.spec.reduce.kind == "butterfly":
            for path in sorted(logs.glob("**/validator*.log*")):
                self.events |= events_in(path.read_text(errors="replace").splitlines())

    def summary(self, entries: Sequence[Entry], convictions: int) -> dict[str, Any]:
        """The figures, by name; none where the leader adds up. What was checked is counted by leaders, so rounds of
        theirs count that others committed."""
        how = self.spec.reduce
        if how.kind != "butterfly":
            return {}
        commits = [entry.data for entry in entries if isinstance(entry.data, RevisionCommitted)]
        taken = [sum(len(part.partitions) for part in commit.reduced.parts) for commit in commits if commit.reduced]
        undrawn = len(commits) * self.spec.num_shards * (how.partitions - how.audits)
        told = list(self.events.values())
        return {
            "commits_with_means_of_miners": len(taken),
            "commits_without": len(commits) - len(taken),
            "partitions_taken": sum(taken),
            "share_of_undrawn_taken": round(sum(taken) / undrawn, 4) if undrawn else 0.0,
            "drawn_checked": sum(event["checked"] for event in told if event["event"] == REDUCED),
            "rounds_recomputed_without_means": sum(event["event"] == DROPPED for event in told),
            "convictions": convictions,
        }

    def problem(self, entries: Iterable[Entry]) -> str:
        """Why the run proves nothing of the butterfly; empty when it does, and where the leader adds up."""
        if self.spec.reduce.kind != "butterfly":
            return ""
        taken = any(isinstance(entry.data, RevisionCommitted) and entry.data.reduced for entry in entries)
        return "" if taken else NOTHING_TAKEN


def events_in(lines: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The events named above, by their lines: their fields are the JSON object at a line's end."""
    found = {}
    for line in lines:
        _, brace, fields = line.rpartition(' {"event": ')
        if brace and line.endswith("}"):
            event = json.loads(brace.strip() + " " + fields)
            if event["event"] in (REDUCED, DROPPED):
                found[line] = event
    return found
