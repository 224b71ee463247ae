"""Seconds to the end of the first step, to skip a finished run, and for each further run of a sweep.

    python -m bench.start --peer NANOGPT --data tinyshakespeare.txt

The data are prepared beforehand. Our train.py runs eagerly; then compiled, with an empty folder of compiled
code (cold) and with the same folder again (warm). The time of a further run is that of a sweep of 6 short
runs minus that of 2, / 4; its overhead is what exceeds the seconds in the runs' metrics. nanoGPT has no
sweeps: a further run starts it again. nanoGPT's first step follows an evaluation of one batch a split."""

import argparse
from functools import partial
from statistics import mean

from bench import harness, nanogpt, ours
from bench.harness import Bench, Measured, Parts
from bench.nanogpt import Peer

FEW, MANY = 2, 6  # runs of a sweep
STEPS = 3
RUN = ["experiment=nanogpt_cpu", *ours.QUIET, f"train.steps={STEPS}", "train.eval_windows=12"]
EAGER, COMPILED = [*RUN, "compile=false"], [*RUN, "compile=true"]


def measure_peer(peer: Peer) -> Measured:
    run = peer.train([*nanogpt.CPU_RECIPE, "--eval_iters=1", f"--max_iters={STEPS}"])
    first_step = run.find(nanogpt.LOSS)[0][0]
    return {"first_step_s": first_step, "whole_s": run.seconds, "further_run_s": run.seconds}


def measure_ours(bench: Bench) -> Measured:
    """Measure a new run, then the same command again, which skips it."""
    folder = bench.folder()
    run, again = (ours.train(bench, EAGER, runs_dir=folder) for _ in range(2))
    return {"first_step_s": run.first_step(), "whole_s": run.child.seconds, "skip_s": again.child.seconds}


def measure_compiled(bench: Bench) -> Measured:
    folder = bench.folder()
    cold, warm = (ours.train(bench, COMPILED, compiled=folder) for _ in range(2))
    return {"cold_first_step_s": cold.first_step(), "warm_first_step_s": warm.first_step()}


def measure_sweep(bench: Bench) -> Measured:
    """Measure the seconds that each further run adds to a sweep."""
    seeds = [",".join(map(str, range(count))) for count in (FEW, MANY)]
    few, many = (ours.train(bench, [*EAGER, f"seed={each}", "-m"]) for each in seeds)
    slope = (many.child.seconds - few.child.seconds) / (MANY - FEW)
    clock = mean(many.rows(number)[-1]["seconds"] for number in range(MANY))
    return {"further_run_s": slope, "further_run_overhead_s": slope - clock}


def measure(bench: Bench, options: argparse.Namespace) -> None:
    peer = Peer(bench, bench.peer) if bench.peer else None
    ours.warm_up(bench)
    parts: Parts = {"nanoGPT": partial(measure_peer, peer)} if peer else {}
    parts |= {"ours": partial(measure_ours, bench), "ours, compiled": partial(measure_compiled, bench)}
    parts["ours, a sweep"] = partial(measure_sweep, bench)
    bench.compare("ours", "nanoGPT", "first_step_s", "whole_s")
    bench.compare("ours, a sweep", "nanoGPT", "further_run_s")
    bench.alternate(parts)


def main() -> None:
    harness.main(harness.parser("start", __doc__, rounds=3), measure)


if __name__ == "__main__":
    main()
