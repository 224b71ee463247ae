"""Eight runs of a norm ablation: ours as one sweep, against eight runs of nanoGPT one after another.

    python -m bench.ablation --peer NANOGPT --data tinyshakespeare.txt

Our sweep is 4 norms in 2 placements with one seed. It is timed with the default settings, eager, and
compiled; it trains as many runs at once as there are cores, each with one thread.
nanoGPT, whose norm is fixed, trains the same model eight times, each time with all cores, at the same size,
batch and number of steps. As in its CPU recipe, it evaluates 20 batches per split, before the first step and
at the end. Each measurement starts with nothing compiled."""

import argparse
from collections.abc import Sequence
from functools import partial

from bench import harness, nanogpt, ours
from bench.harness import Bench, Measured, Variants
from bench.nanogpt import Peer
from cli import programs
from training.run_folder import read_json

SWEEP = ("-m", "norm=layernorm,torch_layernorm,batchnorm,none", "placement=pre,post", "seed=0")


def measure_ours(bench: Bench, overrides: Sequence[str]) -> Measured:
    run = ours.train(bench, overrides, compiled=bench.folder())
    for folder in run.folders:
        if (state := read_json(folder / "status.json").get("state")) != "finished":
            bench.note(f"{bench.variant}: {folder.name} is {state}, so our sweep did less work")
    return {"seconds": run.child.seconds}


def measure_peer(bench: Bench, peer: Peer, flags: Sequence[str]) -> Measured:
    compiled = bench.folder()
    return {"seconds": sum(peer.train(flags, compiled).seconds for _ in range(8))}


def measure(bench: Bench, options: argparse.Namespace) -> None:
    peer = Peer(bench, bench.peer) if bench.peer else None
    steps = options.steps
    ours.warm_up(bench)
    length = [f"--max_iters={steps}", f"--lr_decay_iters={steps}", f"--eval_interval={steps}"]
    flags = [*nanogpt.CPU_RECIPE, *nanogpt.flags_of("nano"), *length]
    variants: Variants = {"nanoGPT": partial(measure_peer, bench, peer, flags)} if peer else {}
    common = [*SWEEP, "train.eval_every=100", "optim.learning_rate=1e-3", f"train.steps={steps}"]
    for variant, mode in {"ours": "auto", "ours, eager": "false", "ours, compiled": "true"}.items():
        variants[variant] = partial(measure_ours, bench, [*common, f"compile={mode}"])
        bench.compare(variant, "nanoGPT", "seconds")
    bench.alternate(variants)


def main() -> None:
    parser = harness.parser("ablation", __doc__, rounds=1)
    parser.add_argument("--steps", type=programs.positive, default=400, help="of each run; default: 400")
    harness.main(parser, measure)


if __name__ == "__main__":
    main()
