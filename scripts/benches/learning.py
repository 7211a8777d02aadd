"""How well a run learns: under churn, against one machine with the same batch, and against one miner alone.

Every tuned side tries the same learning rates on the first seed and keeps its best on all of them; a side under churn
takes the rate of its twin without. What is finished is kept in ``--out``, so that a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import dataclasses
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path

from common.data.corpus import stdlib_corpus
from common.data.index import INDEX_NAME
from common.data.prepare import prepare
from common.data.tokenizer import tokenizer_named
from scripts.benches.learning_arms import ARMS, Arm, Job, Kind, Result, run_job
from scripts.benches.learning_report import plot, table
from scripts.benches.learning_store import Store

RATES: dict[Kind, tuple[float, ...]] = {"adamw": (2e-3, 4e-3, 8e-3), "muon": (4e-3, 8e-3, 1.6e-2)}
SEEDS = (0, 1, 2)
STEPS = 180
ROUND_STEPS = 10


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is run."""

    arms: tuple[Arm, ...]
    rates: tuple[float, ...]
    seeds: tuple[int, ...]
    steps: int
    kind: Kind
    round_steps: int
    processes: int

    def job(self, arm: Arm, seed: int, rate: float) -> Job:
        return Job(arm, seed, rate, self.steps, self.kind, self.round_steps)


def main(arguments: Sequence[str]) -> None:
    """``scripts/bench learning``."""
    parsed = _parser().parse_args(arguments)
    names = parsed.arms or [arm.name for arm in ARMS]
    twins = [arm.rate_of for arm in ARMS if arm.name in names]
    arms = tuple(arm for arm in ARMS if arm.name in [*names, *twins])
    kind: Kind = parsed.kind
    rates, seeds = tuple(parsed.rates or RATES[kind]), tuple(parsed.seeds)
    settings = Settings(arms, rates, seeds, parsed.steps, kind, parsed.round_steps, parsed.processes)
    out: Path = parsed.out or Path(tempfile.mkdtemp(prefix="brigade-learning-"))
    out.mkdir(parents=True, exist_ok=True)
    store = Store(out / "learning.json")
    started_s = time.monotonic()
    results = _run_all(settings, store, _data(out / "data"))
    print(table(results), flush=True)
    print(f"{(time.monotonic() - started_s) / 60:.1f} minutes; figures in {store.path}, plot in {plot(results, out)}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("scripts/bench learning", description=__doc__)
    parser.add_argument("--out", type=Path, help="folder for figures and plot; a new one below the temporary folder")
    parser.add_argument("--steps", type=int, default=STEPS, help="sequential steps of every run")
    parser.add_argument("--round-steps", type=int, default=ROUND_STEPS, help="inner steps of a round")
    parser.add_argument("--kind", choices=list(RATES), default="muon", help="inner optimizer of every side")
    parser.add_argument("--rates", type=float, nargs="+", help="learning rates to choose from")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--processes", type=int, default=2, help="runs side by side, each on one core")
    parser.add_argument("--arms", nargs="+", choices=[arm.name for arm in ARMS], help="only these sides")
    return parser


def _data(folder: Path) -> Path:
    if not (folder / INDEX_NAME).exists():
        prepare(stdlib_corpus(), tokenizer_named("bytes"), folder)
    return folder


def _run_all(settings: Settings, store: Store, folder: Path) -> list[Result]:
    """All jobs; those of an arm's further seeds begin when its rate is known."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(settings.processes, mp_context=context) as pool:
        _drain(settings, store, lambda job: pool.submit(run_job, job, folder))
    return [store.results[job] for job in _wanted(settings, store.results)]


def _drain(settings: Settings, store: Store, submit: Callable[[Job], Future[Result]]) -> None:
    going: dict[Future[Result], Job] = {}
    while True:
        new = [job for job in _wanted(settings, store.results) if job not in store.results]
        for job in [job for job in new if job not in going.values()]:
            going[submit(job)] = job
        if not going:
            return
        finished, _ = wait(going, return_when=FIRST_COMPLETED)
        for future in finished:
            result = future.result()
            del going[future]
            store.add(result)
            _say(result, len(going))


def _wanted(settings: Settings, results: dict[Job, Result]) -> Iterable[Job]:
    """The jobs that are known to be needed so far, tuning first."""
    first = settings.seeds[0]
    for arm in settings.arms:
        if not arm.rate_of:
            yield from (settings.job(arm, first, rate) for rate in settings.rates)
    for arm in settings.arms:
        rate = best_rate(arm, settings, results)
        rest = settings.seeds if arm.rate_of else settings.seeds[1:]
        if rate is not None:
            yield from (settings.job(arm, seed, rate) for seed in rest)


def best_rate(arm: Arm, settings: Settings, results: dict[Job, Result]) -> float | None:
    """The tuned rate of the arm, or of its twin; None while it is not known."""
    tuned = next((other for other in settings.arms if other.name == arm.rate_of), arm)
    jobs = [settings.job(tuned, settings.seeds[0], rate) for rate in settings.rates]
    if any(job not in results for job in jobs):
        return None
    return min(jobs, key=lambda job: results[job].loss).rate


def _say(result: Result, left: int) -> None:
    job = result.job
    told = f"{job.arm.name} seed {job.seed} rate {job.rate:g}: loss {result.loss:.4f}"
    print(f"{told} in {result.seconds:.0f} s; {left} more are waiting or running", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
