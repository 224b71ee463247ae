"""Seconds to the end of the first step, to skip a finished run, and for each further run of a sweep.

    python -m bench.start --peer NANOGPT --data tinyshakespeare.txt

The data are prepared beforehand. Our train.py runs eagerly; then compiled, with an empty folder of compiled
code (cold) and with the same folder again (warm). The time of a further run is (sweep of 6 short runs − sweep
of 2) / 4; its overhead is this time minus the seconds in the runs' metrics. nanoGPT has no sweeps: a further
run starts nanoGPT again. nanoGPT's first step follows an evaluation of one batch per split."""

import argparse
from functools import partial
from statistics import mean

from bench import harness, nanogpt, ours
from bench.harness import Bench, Measured, Variants
from bench.nanogpt import Peer

FEW, MANY = 2, 6  # numbers of runs in the two sweeps
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
    run, skipped = (ours.train(bench, EAGER, runs_dir=folder) for _ in range(2))
    return {"first_step_s": run.first_step(), "whole_s": run.child.seconds, "skip_s": skipped.child.seconds}


def measure_compiled(bench: Bench) -> Measured:
    folder = bench.folder()
    cold, warm = (ours.train(bench, COMPILED, compiled=folder) for _ in range(2))
    return {"cold_first_step_s": cold.first_step(), "warm_first_step_s": warm.first_step()}


def measure_sweep(bench: Bench) -> Measured:
    """Measure the seconds that each further run adds to a sweep."""
    seed_lists = [",".join(map(str, range(count))) for count in (FEW, MANY)]
    few, many = (ours.train(bench, [*EAGER, f"seed={seeds}", "-m"]) for seeds in seed_lists)
    seconds = (many.child.seconds - few.child.seconds) / (MANY - FEW)
    logged_seconds = mean(many.rows(number)[-1]["seconds"] for number in range(MANY))
    return {"further_run_s": seconds, "further_run_overhead_s": seconds - logged_seconds}


def measure(bench: Bench, options: argparse.Namespace) -> None:
    peer = Peer(bench, bench.peer) if bench.peer else None
    ours.warm_up(bench)
    variants: Variants = {"nanoGPT": partial(measure_peer, peer)} if peer else {}
    variants |= {"ours": partial(measure_ours, bench), "ours, compiled": partial(measure_compiled, bench)}
    variants["ours, a sweep"] = partial(measure_sweep, bench)
    bench.compare("ours", "nanoGPT", "first_step_s", "whole_s")
    bench.compare("ours, a sweep", "nanoGPT", "further_run_s")
    bench.alternate(variants)


def main() -> None:
    harness.main(harness.parser("start", __doc__, rounds=3), measure)


if __name__ == "__main__":
    main()
