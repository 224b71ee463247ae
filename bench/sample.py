"""Tokens sampled per second, by our sample.py and nanoGPT's: one text at a time, from a prompt of one token.

    python -m bench.sample --peer NANOGPT --data tinyshakespeare.txt

Both programs draw at temperature 1, with all tokens allowed. Rates exclude start-up. Ours is the rate that
the program prints, which includes the warm-up of the first tokens. nanoGPT draws several texts; its rate is
the length of a text divided by the median time between two texts' ends. When a text is longer than the
context, nanoGPT sees the last tokens that fill the context, our model between half and all of these."""

import argparse
import sys
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median

from bench import child, harness, nanogpt, ours
from bench.harness import Bench, Measured, Variants
from bench.nanogpt import Peer
from cli import programs
from training.environment import ROOT


def measure_ours(bench: Bench, run: Path, lengths: list[int]) -> Measured:
    values: dict[str, float] = {}
    common = ["temperature=1.0", "top_k=null", "num_samples=1"]
    bench.record(common)
    for n in lengths:
        command = [sys.executable, str(ROOT / "sample.py"), f"run={run}", "which=last", f"max_new_tokens={n}"]
        program = child.run([*command, *common], bench.work)
        rate = program.numbers(r"tokens, ([\d,]+) tokens/s$")[-1]
        values |= {f"{n}_tokens_per_s": rate, f"whole_{n}_s": program.seconds}
        precision = program.find(", step [0-9,]+, [a-z]+, ([a-z0-9]+)$")[0][1]
        bench.note(f"{bench.variant} computes in {precision}")
    return values


def measure_peer(peer: Peer, lengths: list[int]) -> Measured:
    values: dict[str, float] = {}
    common = ["--temperature=1.0", "--top_k=65"]
    peer.bench.record(common)
    for n in lengths:
        texts = max(3, 1 + round(640 / n))
        flags = [*common, f"--max_new_tokens={n}"]
        single, several = (peer.sample([*flags, f"--num_samples={count}"]) for count in (1, texts))
        ends = [seconds for seconds, _ in several.find(nanogpt.END_OF_TEXT)]
        rate = n / median(end - previous for previous, end in pairwise(ends))
        values |= {f"{n}_tokens_per_s": rate, f"whole_{n}_s": single.seconds}
    return values


def measure(bench: Bench, options: argparse.Namespace) -> None:
    peer = Peer(bench, bench.peer) if bench.peer else None
    lengths = options.length or [64, 256, 1000]
    ours.warm_up(bench)
    for size in options.size or ("cpu", "baby"):
        baseline, variant = f"{size}: nanoGPT", f"{size}: ours"
        variants: Variants = {}
        if peer:
            quick = ["--max_iters=1", "--eval_interval=1", "--eval_iters=1", "--batch_size=1"]
            peer.train([*nanogpt.flags_of(size), *quick, "--always_save_checkpoint=True"])
            variants[baseline] = partial(measure_peer, peer, lengths)
        quick = ["train.steps=1", "train.eval_windows=1", "train.batch_size=1", "data.val_fraction=0.01"]
        run = ours.train(bench, [*ours.size_overrides(size), *quick, "precision=fp32"])
        variants[variant] = partial(measure_ours, bench, run.folders[0], lengths)
        for n in lengths:
            bench.compare(variant, baseline, f"{n}_tokens_per_s", f"whole_{n}_s")
        bench.alternate(variants)


def main() -> None:
    parser = harness.parser("sample", __doc__, rounds=5)
    parser.add_argument(
        "--size", action="append", choices=ours.SIZES, help="repeatable; default: cpu and baby"
    )
    parser.add_argument(
        "--length", action="append", type=programs.positive, help="repeatable; default: 64, 256 and 1000"
    )
    harness.main(parser, measure)


if __name__ == "__main__":
    main()
