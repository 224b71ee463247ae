"""Memory over a long run, and beside a large corpus. nanoGPT takes no part: --peer is not used.

    python -m bench.memory --data tinyshakespeare.txt

A run of nanoGPT's CPU recipe, evaluations and checkpoints included, against one of a tenth of its steps; and
a made-up corpus against one of 2 MB. `own` is the largest anonymous memory of the process (RssAnon; Linux
only); `peak` adds pages of the corpus, which the system takes back where memory is short."""

import argparse
import json
import re
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Event

from bench import harness, ours
from bench.harness import Bench, Measured


def made_up_corpus(folder: Path, gigabytes: float) -> list[str]:
    """Write a prepared corpus of zeros, as holes in files, in nanoGPT's layout; return its overrides."""
    for split, tokens in (("train", round(gigabytes * 1e9 / 2)), ("val", 20_000)):
        with (folder / f"{split}.bin").open("wb") as file:
            file.truncate(2 * tokens)
    meta = {"tokenizer": {"kind": "char", "chars": "ab"}, "dtype": "uint16"}
    (folder / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
    return ["data=prepared", f"data.path={folder}"]


def take(bench: Bench, part: str, overrides: list[str], data: list[str]) -> Measured:
    own: list[int] = []

    def watch(pid: int, ended: Event) -> None:
        while not ended.wait(0.05):
            with suppress(OSError):  # not Linux, or the process has just ended
                status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
                own.extend(1024 * int(kilobytes) for kilobytes in re.findall(r"RssAnon:\s+(\d+)", status))

    run = ours.train(bench, part, overrides, data=data, watch=watch)
    peak = {"peak_memory_bytes": run.child.peak_memory, "program_s": run.child.seconds}
    return peak | ({"own_memory_bytes": max(own)} if own else {})


def measure(bench: Bench, options: argparse.Namespace) -> None:
    ours.warm_up(bench)
    short = ["experiment=nanogpt_cpu", *ours.QUIET, "train.steps=200", "train.eval_windows=12"]
    runs, corpora = {}, {}
    for steps in (options.steps // 10, options.steps):
        runs[f"{steps} steps"] = ["experiment=nanogpt_cpu", f"train.steps={steps}"], list[str]()
    for gigabytes in (0.002, options.gigabytes):
        corpora[f"a corpus of {gigabytes:g} GB"] = short, made_up_corpus(bench.folder(), gigabytes)
    for small, large in (runs, corpora):
        bench.compare(large, small, "peak_memory_bytes", "own_memory_bytes")
    bench.alternate({part: partial(take, bench, part, *what) for part, what in (runs | corpora).items()})


def main() -> None:
    parser = harness.parser("memory", __doc__, rounds=1)
    parser.add_argument("--steps", type=harness.positive, default=10_000, help="at least 10; default: 10000")
    parser.add_argument("--gigabytes", type=float, default=2.0, help="default: 2")
    harness.main(parser, measure)


if __name__ == "__main__":
    main()
