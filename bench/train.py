"""Tokens trained on per second, by our train.py and nanoGPT's, at the sizes of nanoGPT's recipes.

    python -m bench.train --peer NANOGPT --data tinyshakespeare.txt

Our train.py trains nanoGPT's recipe (experiment=nanogpt_cpu) at each size, with our default statistics, in
precision auto and fp32, compiled or not. nanoGPT runs its own train.py: eagerly, as its README recommends for
a CPU, and compiled. Rates are medians over steps, without the first steps. Our rates exclude the time of
statistics; `with statistics` includes it. Memory is main memory. Only the first round compiles."""

import argparse
from collections.abc import Sequence
from functools import partial
from statistics import median

from bench import harness, nanogpt, ours
from bench.harness import Bench, Measured, Variants
from bench.nanogpt import Peer
from cli import programs

STEPS = {"nano": 300, "cpu": 400, "mid": 120, "baby": 9, "gpt2": 60}  # for a steady median within minutes


def measure_ours(bench: Bench, size: str, steps: int, overrides: Sequence[str]) -> Measured:
    log_every = 10 if steps >= 100 and not bench.cuda else 1  # nanoGPT logs each step, which waits for a GPU
    logged = [*ours.QUIET, f"train.steps={steps}", f"train.log_every={log_every}", "train.eval_windows=64"]
    run = ours.train(bench, ["experiment=nanogpt_cpu", *ours.size_overrides(size), *overrides, *logged])
    rate, with_statistics = ours.tokens_per_s(run.rows())
    return {
        "tokens_per_s": rate,
        "tokens_per_s_with_statistics": with_statistics,
        "peak_memory_bytes": run.child.peak_memory,
        "first_step_s": run.first_step(),
    }


def measure_peer(peer: Peer, size: str, steps: int, compiled: bool) -> Measured:
    flags = [*nanogpt.flags_of(size), "--eval_iters=1", "--log_interval=1", f"--compile={compiled}"]
    run = peer.train([*flags, f"--max_iters={steps}", f"--lr_decay_iters={steps}"])
    *_, block_size, _, batch_size = ours.SIZES[size]
    seconds = median(ours.drop_warm_up(run.numbers(nanogpt.MILLISECONDS))) / 1000
    return {
        "tokens_per_s": batch_size * block_size / seconds,
        "peak_memory_bytes": run.peak_memory,
        "first_step_s": run.find(nanogpt.LOSS)[0][0],
    }


def measure(bench: Bench, options: argparse.Namespace) -> None:
    peer = Peer(bench, bench.peer) if bench.peer else None
    ours.warm_up(bench)
    for size in options.size or ["cpu", "mid", "baby"]:
        steps = options.steps or STEPS[size]
        variants: Variants = {}
        for compiled in (False,) if options.eager else (False, True):
            suffix = ", compiled" if compiled else ""
            if peer:
                variants[f"{size}: nanoGPT{suffix}"] = partial(measure_peer, peer, size, steps, compiled)
            for precision in ("auto", "fp32"):
                variant = f"{size}: ours, {precision}{suffix}"
                overrides = [f"precision={precision}", f"compile={str(compiled).lower()}", *options.override]
                variants[variant] = partial(measure_ours, bench, size, steps, overrides)
                bench.compare(variant, f"{size}: nanoGPT{suffix}", "tokens_per_s", "peak_memory_bytes")
        bench.alternate(variants)


def main() -> None:
    parser = harness.parser("train", __doc__, rounds=3)
    parser.add_argument("--size", action="append", choices=STEPS, help="repeatable; default: cpu, mid, baby")
    parser.add_argument("--steps", type=programs.positive, help="of each run, at least 2; default: by size")
    parser.add_argument("--eager", action="store_true", help="nothing compiled")
    parser.add_argument(
        "--override", action="append", default=[], help="KEY=VALUE of our train.py; repeatable"
    )
    harness.main(parser, measure)


if __name__ == "__main__":
    main()
