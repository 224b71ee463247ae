"""Measure what compiling costs and gains, by whole commands: nanoGPT's CPU recipe in our train.py.

    python -m bench.compiling --peer NANOGPT --data tinyshakespeare.txt

Uncompiled, compiled with nothing compiled before (cold), and compiled with the code of an earlier run (warm).
`compile=auto` is one of the first two: each run's precision and compile are listed. nanoGPT's own program
runs uncompiled, as its README recommends for a CPU. `first step` is the seconds from the start of the program
to the end of its first step, in which all compiling is done."""

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from bench import harness, nanogpt, ours
from bench.harness import Bench, Measured, Variants
from bench.nanogpt import Peer
from cli import programs


def measure_ours(bench: Bench, overrides: Sequence[str], compiled: Path | None = None) -> Measured:
    run = ours.train(bench, overrides, compiled=compiled or bench.folder())
    rate, _ = ours.tokens_per_s(run.rows())
    first, loss = run.first_step(), run.final_loss()
    return {"seconds": run.child.seconds, "tokens_per_s": rate, "first_step_s": first, "val_full_loss": loss}


def measure_peer(bench: Bench, peer: Peer, steps: int) -> Measured:
    run = peer.train([*nanogpt.CPU_RECIPE, f"--max_iters={steps}", f"--lr_decay_iters={steps}"])
    return {"seconds": run.seconds}


def measure(bench: Bench, options: argparse.Namespace) -> None:
    recipe = ["experiment=nanogpt_cpu", *options.override]
    auto = [*recipe, f"train.steps={options.steps}"]
    compiled = [*auto, "compile=true"]
    ours.warm_up(bench)
    warm = bench.folder()
    ours.train(bench, [*recipe, "train.steps=1", "compile=true"], compiled=warm)
    variants: Variants = {
        "uncompiled": partial(measure_ours, bench, [*auto, "compile=false"]),
        "auto": partial(measure_ours, bench, auto),
        "compiled, cold": partial(measure_ours, bench, compiled),
        "compiled, warm": partial(measure_ours, bench, compiled, warm),
    }
    bench.compare("auto", "uncompiled", "seconds")
    bench.compare("auto", "compiled, cold", "seconds")
    bench.compare("compiled, cold", "uncompiled", "seconds", "tokens_per_s")
    bench.compare("compiled, warm", "uncompiled", "seconds", "tokens_per_s")
    if bench.peer:
        variants["nanoGPT"] = partial(measure_peer, bench, Peer(bench, bench.peer), options.steps)
        for variant in ("uncompiled", "compiled, cold", "compiled, warm"):
            bench.compare(variant, "nanoGPT", "seconds")
    bench.alternate(variants)


def main() -> None:
    parser = harness.parser("compiling", __doc__, rounds=5)
    parser.add_argument("--steps", type=programs.positive, default=2000, help="of each run; default: 2000")
    parser.add_argument("--override", action="append", default=[], help="KEY=VALUE of our train.py")
    harness.main(parser, measure)


if __name__ == "__main__":
    main()
