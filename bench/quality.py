"""Wall time to a validation loss on tinyshakespeare, everything included: start, compilation, evaluations.

    python -m bench.quality --peer NANOGPT --data tinyshakespeare.txt
    python -m bench.quality --peer NANOGPT --data tinyshakespeare.txt --preset nanogpt_cpu

nanoGPT trains its CPU recipe; our train.py a preset of conf/experiment, with another seed each round.
`reached` is 1 if our loss on the whole validation split is at most 1.90, the loss at which nanoGPT's recipe
ends; where it is not, the ratio is of the times of two recipes, not of times to a loss. nanoGPT estimates its
loss from its last checkpoint, in an untimed second run, and evaluates and saves every 250 steps. Both
programs start with nothing compiled. Our preset was chosen on this text and this split; nanoGPT's recipe was
not. A curve is the mean training loss of each eighth of a run."""

import argparse
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from statistics import mean

from bench import harness, nanogpt, ours
from bench.harness import Bench, Measured, Variants
from bench.nanogpt import Peer
from cli import programs

REACHED = (
    "reached: 1 if a run ends at the target or below, else 0; only if all are 1 are these times to a loss"
)
TARGET = 1.90  # nats per character; nanoGPT's recipe ends at 1.894 and 1.904 on the whole split


def measure_ours(bench: Bench, overrides: Sequence[str]) -> Measured:
    seed = len(bench.raw.get(str(bench.variant), {}).get("seconds", []))  # the number of finished rounds
    run = ours.train(bench, [*overrides, f"seed={seed}"], compiled=bench.folder())
    losses = [float(row["train/loss"]) for row in run.rows() if "train/loss" in row]
    return as_metrics(run.child.seconds, run.final_loss(), losses)


def measure_peer(bench: Bench, peer: Peer, steps: int) -> Measured:
    run, loss = peer.run_recipe(steps, compiled=bench.folder())
    return as_metrics(run.seconds, loss, run.numbers(nanogpt.LOSS))


def as_metrics(seconds: float, loss: float, losses: Sequence[float]) -> Measured:
    """Return the metrics of a run, with the mean training loss of each eighth."""
    ends = [len(losses) * eighth // 8 for eighth in range(9)]
    curve = {f"train_loss_{i}/8": mean(losses[a:b]) for i, (a, b) in enumerate(pairwise(ends), 1) if a < b}
    return {"seconds": seconds, "val_full_loss": loss, "reached": loss <= TARGET} | curve


def measure(bench: Bench, options: argparse.Namespace) -> None:
    peer = Peer(bench, bench.peer) if bench.peer else None
    variant = f"ours, {options.preset}"
    ours.warm_up(bench)
    overrides = [f"experiment={options.preset}", *options.override]
    variants: Variants = {"nanoGPT": partial(measure_peer, bench, peer, options.peer_steps)} if peer else {}
    variants[variant] = partial(measure_ours, bench, overrides)
    bench.note(f"the target is {TARGET} nats per character; our seeds are 0, 1, …; nanoGPT's seed is fixed")
    bench.note(REACHED)
    bench.compare(variant, "nanoGPT", "seconds")
    bench.alternate(variants)


def main() -> None:
    parser = harness.parser("quality", __doc__, rounds=3)
    parser.add_argument("--preset", default="speedrun", help="of conf/experiment; default: speedrun")
    parser.add_argument("--override", action="append", default=[], help="KEY=VALUE of our train.py")
    parser.add_argument("--peer-steps", type=programs.positive, default=2000, help="default: 2000")
    harness.main(parser, measure)


if __name__ == "__main__":
    main()
