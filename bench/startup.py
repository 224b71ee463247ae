"""Seconds from the command to the end of the first step, ours and nanoGPT's; to skip a finished run; and that
each further run of a sweep adds.

    python -m bench.startup --peer NANOGPT --data tinyshakespeare.txt

The data are prepared beforehand in both. Without compilation; then with it, in an empty folder for what
torch compiles (cold) and in the same again (warm): `compile` is that less the seconds without. A sweep's is
the slope between sweeps of 2 and of 6 runs of very few steps, in one process, one after another; `overhead`
is that less what those runs' own clocks say: training, statistics, evaluation. nanoGPT has no sweeps: a
further run is its program once more."""

import argparse
import math
from pathlib import Path
from statistics import mean

from bench import options, ours, peer
from bench.measure import BenchError
from bench.report import Bench, Column, Measured

STEPS = 3
FEW, MANY = 2, 6  # runs of a sweep
COLUMNS: list[Column] = [
    ("first_step_s", "first step, s", 1),
    ("compile_s", "compile, s", 1),
    ("whole_s", "whole program, s", 1),
    ("skip_s", "skip a finished run, s", 1),
    ("further_run_s", "a further run, s", 1),
    ("further_run_overhead_s", "its overhead, s", 1),
]
RUN = ["experiment=nanogpt_cpu", *ours.QUIET, f"train.steps={STEPS}", "train.eval_windows=12"]
EAGER = [*RUN, "compile=false"]


class Started:
    """The parts, which share a round's results."""

    def __init__(self, bench: Bench, theirs: peer.Peer | None) -> None:
        self.bench, self.theirs = bench, theirs
        self.round = 0
        self.eager = math.nan  # seconds to the first step of this round's run that does not compile

    def folder(self, name: str) -> Path:
        folder = self.bench.work / f"{name}-{self.round}"
        folder.mkdir(exist_ok=True)
        return folder

    def take_ours(self) -> Measured:
        """Once, then the same command again."""
        self.round += 1
        runs_dir = self.folder("again")
        run = ours.train(self.bench, EAGER, runs_dir=runs_dir)
        again = ours.train(self.bench, EAGER, runs_dir=runs_dir)
        self.eager = run.first_step
        return {"first_step_s": run.first_step, "whole_s": run.child.seconds, "skip_s": again.child.seconds}

    def take_compiled(self) -> Measured:
        """In the folder for compiled code that this round's first call found empty."""
        run = ours.train(self.bench, [*RUN, "compile=true"], compiled=self.folder("compiled"))
        if not run.environment()["compile"]:
            self.bench.note("torch could not compile our model here; its seconds are those of failing")
        return {"first_step_s": run.first_step, "compile_s": run.first_step - self.eager}

    def take_sweep(self) -> Measured:
        """The slope between a short sweep and a longer one."""
        seconds, clocks = {}, {}
        for n in (FEW, MANY):
            seeds = ",".join(map(str, range(n)))
            run = ours.train(self.bench, [*EAGER, f"seed={seeds}", "-m"])
            if len(run.folders) != n:
                raise BenchError(f"a sweep of {n} runs left {len(run.folders)}")
            seconds[n] = run.child.seconds
            clocks[n] = mean(run.rows(number)[-1]["seconds"] for number in range(n))
        slope = (seconds[MANY] - seconds[FEW]) / (MANY - FEW)
        return {"further_run_s": slope, "further_run_overhead_s": slope - clocks[MANY]}

    def take_peers(self) -> Measured:
        assert self.theirs
        flags = [*peer.CPU_RECIPE, "--eval_iters=1", f"--max_iters={STEPS}", "--compile=False"]
        self.bench.settings["nanoGPT"] = self.theirs.told(flags)
        child = self.theirs.train(flags).child
        return {
            "first_step_s": child.seconds_to("iter 0:"),
            "whole_s": child.seconds,
            "further_run_s": child.seconds,
        }


def measure(bench: Bench, asked: argparse.Namespace) -> None:
    theirs = peer.of(bench)
    ours.warm_up(bench)
    started = Started(bench, theirs)
    bench.settings["ours"] = ours.told(EAGER)
    parts = {"nanoGPT": started.take_peers} if theirs else {}
    parts |= {
        "ours": started.take_ours,
        "ours, compiled, cold": started.take_compiled,
        "ours, compiled, warm": started.take_compiled,
        "ours, a sweep": started.take_sweep,
    }
    bench.compare("ours", "nanoGPT", "first_step_s", "whole_s")
    bench.compare("ours, a sweep", "nanoGPT", "further_run_s")
    bench.alternate(parts)
    bench.note("ratios are ours over nanoGPT's seconds; below 1 is faster")
    bench.note("nanoGPT's first step has its first evaluation before it, of one batch a split")
    bench.show(COLUMNS)


def main() -> None:
    options.program("startup", __doc__, measure, rounds=3)


if __name__ == "__main__":
    main()
