"""Wall time to a validation loss on tinyshakespeare, everything included: start, compilation, evaluations.

    python -m bench.quality --peer NANOGPT --data tinyshakespeare.txt
    python -m bench.quality --peer NANOGPT --data tinyshakespeare.txt --preset nanogpt_cpu

nanoGPT runs its CPU recipe; ours a preset of conf/experiment, another seed each round. Our time counts only
if `reached` is 1: the loss of the whole validation split is at most what nanoGPT's recipe ends at, so its own
time always counts. Its loss is its own estimate from its last checkpoint, in a second run that is not timed.
Both start with nothing compiled. nanoGPT evaluates and saves every 250 steps. Our preset was chosen on this
text and this validation split; nanoGPT's recipe was not. Curves are training losses, means over each eighth
of a run."""

import argparse
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from statistics import mean

from bench import harness, nanogpt, ours
from bench.harness import Bench, Measured, Parts
from bench.nanogpt import Peer

TARGET = 1.90  # nats per character; nanoGPT's recipe ends at 1.894 and 1.904 on the whole split


def take_ours(bench: Bench, part: str, overrides: Sequence[str]) -> Measured:
    seed = len(bench.raw.get(part, {}).get("seconds", []))  # the number of finished rounds
    run = ours.train(bench, part, [*overrides, f"seed={seed}"], compiled=bench.folder())
    losses = [float(row["train/loss"]) for row in run.rows() if "train/loss" in row]
    return measured(run.child.seconds, run.final_loss(), losses)


def take_peer(bench: Bench, peer: Peer, steps: int) -> Measured:
    run, loss = peer.recipe(steps, compiled=bench.folder())
    return measured(run.seconds, loss, run.numbers(nanogpt.LOSS))


def measured(seconds: float, loss: float, losses: Sequence[float]) -> Measured:
    """Return the metrics of a run, with the mean training loss over each eighth of it."""
    ends = [len(losses) * eighth // 8 for eighth in range(9)]
    curve = {f"train_loss_{i}/8": mean(losses[a:b]) for i, (a, b) in enumerate(pairwise(ends), 1) if a < b}
    return {"seconds": seconds, "val_full_loss": loss, "reached": loss <= TARGET} | curve


def measure(bench: Bench, options: argparse.Namespace) -> None:
    peer = Peer(bench, bench.peer) if bench.peer else None
    part = f"ours, {options.preset}"
    ours.warm_up(bench)
    overrides = [f"experiment={options.preset}", *options.override]
    parts: Parts = {"nanoGPT": partial(take_peer, bench, peer, options.peer_steps)} if peer else {}
    parts[part] = partial(take_ours, bench, part, overrides)
    bench.note(f"the target is {TARGET} nats per character; seeds of ours are 0, 1, …, nanoGPT's is fixed")
    bench.compare(part, "nanoGPT", "seconds")
    bench.alternate(parts)


def main() -> None:
    parser = harness.parser("quality", __doc__, rounds=3)
    parser.add_argument("--preset", default="speedrun", help="of conf/experiment; default: speedrun")
    parser.add_argument("--override", action="append", default=[], help="KEY=VALUE of our train.py")
    parser.add_argument("--peer-steps", type=harness.positive, default=2000, help="default: 2000")
    harness.main(parser, measure)


if __name__ == "__main__":
    main()
