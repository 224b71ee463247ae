"""Eight runs of a norm ablation: ours as one sweep, against eight runs of nanoGPT one after another.

    python -m bench.ablation --peer NANOGPT --data tinyshakespeare.txt

Ours is experiment=norm_ablation with one seed, which is 4 norms in 2 placements, on tinyshakespeare: as it
ships, and for comparison eager and compiled. nanoGPT has no norm to choose: it is the same run eight times,
each a program, at the same size, batch and number of steps, with the evaluations of its CPU recipe (20
batches a split), before the first step and at the end. All begin with nothing compiled, so compile time
counts.
"""

import argparse
import tempfile
from functools import partial
from pathlib import Path

from bench import options, ours, peer
from bench.measure import BenchError
from bench.report import Bench, Column, Measured
from bench.sizes import NANO
from rundir.run_files import read_json

RUNS = 8
COLUMNS: list[Column] = [("seconds", "8 runs, s", 1), ("seconds_a_run", "a run, s", 1)]


def take_ours(bench: Bench, part: str, overrides: list[str]) -> Measured:
    bench.settings[part] = ours.told(overrides)
    with tempfile.TemporaryDirectory(dir=bench.work) as compiled:
        run = ours.train(bench, overrides, compiled=Path(compiled))
    status = {folder.name: read_json(folder / "status.json") for folder in run.folders}
    if len(status) != RUNS:
        raise BenchError(f"of {RUNS} runs, {len(status)} are there")
    for name, found in status.items():
        if found.get("state") != "finished":
            bench.note(
                f"{part}: {name} is {found.get('state')} at step {found.get('step')}, so less was done"
            )
    bench.found.setdefault("losses", {})[part] = {
        folder.name.rsplit("-s", 1)[0]: read_json(folder / "status.json").get("final")
        for folder in run.folders
    }
    return {"seconds": run.child.seconds, "seconds_a_run": run.child.seconds / RUNS}


def take_peers(bench: Bench, theirs: peer.Peer, flags: list[str]) -> Measured:
    bench.settings["nanoGPT"] = theirs.told(flags)
    with tempfile.TemporaryDirectory(dir=bench.work) as compiled:
        runs = [theirs.train(flags, "ablation", compiled=Path(compiled)) for _ in range(RUNS)]
    seconds = sum(run.child.seconds for run in runs)
    return {"seconds": seconds, "seconds_a_run": seconds / RUNS}


def measure(bench: Bench, asked: argparse.Namespace) -> None:
    theirs = peer.of(bench)
    ours.warm_up(bench)
    steps = asked.steps
    parts = {}
    if theirs:
        last = [f"--max_iters={steps}", f"--lr_decay_iters={steps}", f"--eval_interval={steps}"]
        flags = [*peer.CPU_RECIPE, f"--batch_size={NANO.batch_size}", *last]
        parts["nanoGPT"] = partial(take_peers, bench, theirs, flags)
    for part, mode in (
        ("ours", []),
        ("ours, eager", ["compile=false"]),
        ("ours, compiled", ["compile=true"]),
    ):
        whole = ["train.hopeless_after=0", f"train.steps={steps}"]  # none is given up
        overrides = ["experiment=norm_ablation", "seed=0", *whole, *mode]
        parts[part] = partial(take_ours, bench, part, [*overrides, *asked.extra])
        bench.compare(part, "nanoGPT", "seconds")
    bench.alternate(parts)
    bench.note("ratios are ours over nanoGPT's seconds; below 1 is faster")
    bench.note("ours does as many runs at once as there are cores, each with one thread; nanoGPT's use all")
    bench.note(
        f"{steps} steps of {NANO.tokens:,} tokens each; nanoGPT makes one more after its last evaluation"
    )
    bench.show(COLUMNS)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=options.at_least_one, default=400, help="of each run; 400")
    parser.add_argument("--extra", action="append", default=[], metavar="KEY=VALUE", help="for our train.py")


def main() -> None:
    options.program("ablation", __doc__, measure, rounds=1, more=arguments)


if __name__ == "__main__":
    main()
