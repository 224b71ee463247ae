"""Measure the speed of this project, mostly in comparison with nanoGPT, and write it to bench/results.

    python -m bench train     tokens per second of a training step
    python -m bench sample    tokens per second of sampling
    python -m bench quality   whole commands, to a validation loss
    python -m bench ablation  eight runs of a sweep
    python -m bench norms     forward and backward of each norm; needs no nanoGPT
    python -m bench.page      results/performance.md, from all files of bench/results

--peer names a checkout of https://github.com/karpathy/nanoGPT in which data/shakespeare_char/prepare.py has
run. The programs run in turn, A B A B, so that other load on the machine slows all of them. If a benchmark is
interrupted, the complete rounds are kept.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from bench.beside_nanogpt import ablation, quality, sample, train
from bench.norms import norms
from bench.page import RESULTS, section
from bench.programs import SIZES, BenchError, Programs
from cli import programs
from data.files import write_atomically
from training.environment import ROOT, processor

MEASUREMENTS = {
    "train": (train, "A training step / nanoGPT's."),
    "sample": (sample, "Sampling / nanoGPT's."),
    "quality": (quality, "A whole command / nanoGPT's; losses in nats."),
    "ablation": (ablation, "Eight runs as one sweep / eight runs of nanoGPT."),
    "norms": (norms, "A norm's forward and backward / torch's LayerNorm."),
}


def parse() -> argparse.Namespace:
    parser = programs.parser(__doc__, "bench")
    parser.add_argument("name", choices=MEASUREMENTS)
    parser.add_argument(
        "overrides", nargs="*", metavar="KEY=VALUE", help="for our train.py, after all others"
    )
    parser.add_argument("--peer", type=Path, metavar="CHECKOUT", help="a checkout of nanoGPT")
    parser.add_argument(
        "--size", action="append", choices=SIZES, help="may be repeated; for train, sample, norms"
    )
    parser.add_argument(
        "--steps", type=programs.positive, help="steps of each run; for train, quality, ablation"
    )
    parser.add_argument("--compile", action="store_true", help="compile what both train")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="default: cpu")
    parser.add_argument("--rounds", type=programs.positive, default=3, help="default: 3")
    parser.add_argument("--out", type=Path, metavar="FILE", help="default: bench/results/NAME-MACHINE.json")
    options = parser.parse_args()
    options.peer = (options.peer or Path("nanoGPT")).resolve()
    if options.name != "norms" and not (options.peer / "data/shakespeare_char/train.bin").is_file():
        parser.error(f"--peer: {options.peer}: give a checkout of nanoGPT in which prepare.py has run")
    return options


def facts(options: argparse.Namespace) -> dict[str, Any]:
    """Return what was measured, on which machine, with which versions, and on which day."""
    what = " ".join([MEASUREMENTS[options.name][1], *["Compiled."] * options.compile, *options.overrides])
    machine = torch.cuda.get_device_name() if options.device == "cuda" else processor()
    machine += f", {torch.get_num_threads()} threads"
    versions = f"torch {torch.__version__}, commit {commit(ROOT)}"
    if options.name != "norms":
        versions += f", nanoGPT {commit(options.peer)}"
    return {"what": what, "machine": machine, "versions": versions, "date": f"{datetime.now(UTC):%Y-%m-%d}"}


def commit(checkout: Path) -> str:
    """Return the commit of a checkout, and whether files have changed since."""
    describe = "describe --always --abbrev=9 --exclude=*".split()
    words = ["git", "-C", str(checkout), *describe, "--dirty= with changes"]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def main() -> None:
    options = parse()
    result: dict[str, Any] = facts(options) | {"rows": {}}
    machine = re.sub(r"[^a-z0-9]+", "-", result["machine"].partition(",")[0].lower()).strip("-")
    out = options.out or RESULTS / f"{options.name}{'-compiled' * options.compile}-{machine}.json"
    measure, _ = MEASUREMENTS[options.name]
    with tempfile.TemporaryDirectory(prefix="bench-") as work:
        beside = Programs(options.peer, Path(work), options.device, options.compile, options.overrides)
        if measure is not norms:  # untimed: prepares the data and compiles our modules to bytecode
            beside.train("model.n_layer=1", "train.steps=1", "train.eval_windows=1", "compile=false")
        for number in range(options.rounds):
            print(f"{options.name}: round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
            for title, values in list(measure(beside, options, number)):  # list: keeps whole rounds only
                for name, value in values.items():
                    result["rows"].setdefault(title, {}).setdefault(name, []).append(value)
            write_atomically(out, json.dumps(result, indent=1) + "\n")
    print(section(out.stem, result), out, sep="\n")


if __name__ == "__main__":
    try:
        main()
    except BenchError as error:
        sys.exit(f"error: {error}")
