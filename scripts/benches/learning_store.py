"""Results of the learning bench on disk: one JSON file, written whole after each run."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from common.files import PUBLIC, write_atomically
from scripts.benches.learning_arms import Arm, Job, Result
from scripts.benches.learning_engine import Tally


class Store:
    """What is known by job; a file from before is read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        rows = json.loads(path.read_text()) if path.exists() else []
        self.results: dict[Job, Result] = {result.job: result for result in map(_result, rows)}

    def add(self, result: Result) -> None:
        """Keep it, on disk too."""
        self.results[result.job] = result
        rows = [dataclasses.asdict(one) for one in self.results.values()]
        write_atomically(self.path, (json.dumps(rows, indent=1) + "\n").encode(), PUBLIC)


def _result(row: dict[str, Any]) -> Result:
    job = Job(Arm(**row["job"].pop("arm")), **row["job"])
    tally = Tally(**row["tally"]) if row["tally"] else None
    curve = tuple((steps, loss) for steps, loss in row["curve"])
    return Result(job, row["loss"], curve, tally, row["seconds"])
