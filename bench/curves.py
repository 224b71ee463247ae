"""Do both programs, and both precisions, learn the same? ``python -m bench.train --curves`` runs it."""

from functools import partial
from statistics import mean

from bench import ours, peer
from bench.report import Bench, Column, Measured

STEPS = 2000  # of nanoGPT's recipe for a CPU
COLUMNS: list[Column] = [("val_full_loss", "val loss, nats/token", 1), ("seconds", "whole run, s", 1)]
EVALUATED = 200  # batches of 64 windows: an estimate of the whole split's loss to some 0.003 nats


def take_ours(bench: Bench, part: str, precision: str, steps: int, seeds: list[int]) -> Measured:
    """The next seed's run."""
    overrides = ["experiment=nanogpt_cpu", f"train.steps={steps}", f"precision={precision}"]
    bench.settings[part] = ours.told([*overrides, "seed=0, 1, …"])
    run = ours.train(bench, [*overrides, f"seed={seeds.pop(0)}"])
    return {"val_full_loss": run.final_loss(), "seconds": run.child.seconds}


def whole_split(theirs: peer.Peer, steps: int, out: str) -> float:
    """The peer's loss after ``steps`` updates by its own evaluation, of many batches of its checkpoint."""
    flags = [*peer.CPU_RECIPE, "--init_from=resume", f"--max_iters={steps}", f"--eval_interval={steps}"]
    run = theirs.train([*flags, f"--eval_iters={EVALUATED}", "--batch_size=64"], out)
    return run.evaluations[0][1]


def recipe(steps: int) -> list[str]:
    """nanoGPT's flags for its CPU recipe; its last checkpoint is kept, so that it can be evaluated."""
    last = [f"--max_iters={steps}", f"--lr_decay_iters={steps}", "--always_save_checkpoint=True"]
    return [*peer.CPU_RECIPE, *last, f"--eval_interval={steps if steps % 250 else 250}"]


def take_peers(bench: Bench, theirs: peer.Peer, steps: int) -> Measured:
    flags = recipe(steps)
    bench.settings["nanoGPT"] = theirs.told(flags)
    run = theirs.train(flags, "curves")
    bench.found["peer"] = {"its own last estimate": run.evaluations[-1][1], "of batches": 20}
    return {"val_full_loss": whole_split(theirs, steps, "curves"), "seconds": run.child.seconds}


def measure(bench: Bench, theirs: peer.Peer | None, n_seeds: int, steps: int | None) -> None:
    """Whole runs of the CPU recipe: ours in both precisions for each seed, the peer's once, as its seed is
    fixed."""
    steps = steps or STEPS
    if theirs:
        bench.alternate({"nanoGPT": partial(take_peers, bench, theirs, steps)}, rounds=1)
    seeds = {precision: list(range(n_seeds)) for precision in ("bf16", "fp32")}
    parts = {
        f"ours, {precision}": partial(take_ours, bench, f"ours, {precision}", precision, steps, left)
        for precision, left in seeds.items()
    }
    bench.alternate(parts, rounds=n_seeds)
    low, high = (bench.raw[f"ours, {precision}"]["val_full_loss"] for precision in ("bf16", "fp32"))
    each = [a - b for a, b in zip(low, high, strict=True)]
    bench.found["bf16 - fp32"] = {"by seed": each, "mean": mean(each)}
    words = ", ".join(f"{one:+.4f}" for one in each)
    bench.note(f"bf16 - fp32, paired by seed, in nats: {words}; mean {mean(each):+.4f}")
    bench.note("ours is the whole validation split, each token a target once")
    if theirs:
        bench.note(
            f"nanoGPT's is an estimate: its own evaluation of its last checkpoint, on {EVALUATED} batches "
            "of 64 windows drawn from the split; in its run it takes 20 batches of 12"
        )
    bench.show(COLUMNS)
