"""Memory of a long run, and of a run on a large corpus. nanoGPT is not measured: --peer is not used.

    python -m bench.memory --data tinyshakespeare.txt

A run of nanoGPT's CPU recipe, with evaluations and checkpoints, is compared with a run of a tenth of its
steps; a short run on a large made-up corpus is compared with the same run on a corpus of 2 MB. `own` is the
largest anonymous memory (RssAnon; Linux only); `peak` includes the corpus's pages, which can be dropped."""

import argparse
import json
from functools import partial
from pathlib import Path

from bench import harness, ours
from bench.child import BenchError
from bench.harness import Bench, Measured
from cli import programs

SMALL = 0.002  # gigabytes of the small corpus


def write_made_up_corpus(folder: Path, gigabytes: float) -> list[str]:
    """Write a corpus of zeros in nanoGPT's layout, as sparse files. Return the overrides that select it."""
    for split, tokens in (("train", round(gigabytes * 1e9 / 2)), ("val", 20_000)):
        with (folder / f"{split}.bin").open("wb") as file:
            file.truncate(2 * tokens)
    meta = {"tokenizer": {"kind": "char", "chars": "ab"}, "dtype": "uint16"}
    (folder / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
    return ["data=prepared", f"data.path={folder}"]


def measure_run(bench: Bench, overrides: list[str], data: list[str]) -> Measured:
    program = ours.train(bench, overrides, data=data).child
    own = {"own_memory_bytes": program.own_memory} if program.own_memory else {}
    return {"peak_memory_bytes": program.peak_memory, "program_s": program.seconds} | own


def measure(bench: Bench, options: argparse.Namespace) -> None:
    if options.gigabytes <= SMALL:
        raise BenchError(f"--gigabytes: {options.gigabytes:g} is no large corpus; give more than {SMALL:g}")
    if options.steps < 10:
        raise BenchError(f"--steps: {options.steps} is too few; give at least 10")
    ours.warm_up(bench)
    short = ["experiment=nanogpt_cpu", *ours.QUIET, "train.steps=200", "train.eval_windows=12"]
    runs, corpora = {}, {}
    for steps in (options.steps // 10, options.steps):
        runs[f"{steps} steps"] = ["experiment=nanogpt_cpu", f"train.steps={steps}"], list[str]()
    for gigabytes in (SMALL, options.gigabytes):
        corpora[f"a corpus of {gigabytes:g} GB"] = short, write_made_up_corpus(bench.folder(), gigabytes)
    for small, large in (runs, corpora):
        bench.compare(large, small, "peak_memory_bytes", "own_memory_bytes")
    bench.alternate({variant: partial(measure_run, bench, *run) for variant, run in (runs | corpora).items()})


def main() -> None:
    parser = harness.parser("memory", __doc__, rounds=1)
    parser.add_argument("--steps", type=programs.positive, default=10_000, help="at least 10; default: 10000")
    parser.add_argument("--gigabytes", type=float, default=2.0, help="default: 2")
    harness.main(parser, measure)


if __name__ == "__main__":
    main()
