"""Train one GPT whose normalization is a choice.

    python train.py                                    layernorm before each branch, on Shakespeare
    python train.py norm=batchnorm placement=post      another norm, elsewhere
    python train.py data=text data.path=FILE           another text
    python train.py -m norm=layernorm,none seed=0,1    several runs, one after another
    python train.py --help                             every choice and default

Read it from the bottom: ``main`` finds or makes the run, ``train`` is the loop. Torch is imported inside
functions, as it takes a second: a typo, or a run that has already ended, is answered before that.
"""

import math
import shlex
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from data import batches
from data.prepared import Prepared, prepare
from training import checkpoint, cli, interrupts, runs
from training.config import RunConfig
from training.environment import changed_code, environment
from training.tracking import Metrics, ProgressLine, cut

if TYPE_CHECKING:
    from torch import Tensor, nn

    from training.device import Compute

    Net = Callable[[Tensor], Tensor]  # tokens (B, T) -> logits (B, T, V)
    LossOf = Callable[[Net, batches.Batch], Tensor]


def evaluate(model: "nn.Module", loss_of: "LossOf", some: Iterable[batches.Batch]) -> float:
    """Mean loss per target token, in evaluation mode. Moves no buffer and draws no random number."""
    import torch

    model.eval()
    with torch.inference_mode():
        losses, sizes = zip(*((loss_of(model, batch), batch[1].size) for batch in some), strict=True)
        values = torch.stack(losses).tolist()  # one copy to the host
    model.train()
    return math.fsum(v * n for v, n in zip(values, sizes, strict=True)) / sum(sizes)


def train(config: RunConfig, data: Prepared, compute: "Compute", run: runs.Run) -> None:
    """Train from where the run is to its last step; its folder then holds all there is to know."""
    import torch
    import torch.nn.functional as F

    from model.streams import stream_seed
    from training import state
    from training.device import set_switches
    from training.optim import new_optimizers, rate_scale
    from training.rehearsal import rehearsed

    threads = set_switches(compute, config.train.threads)
    seed_of = partial(stream_seed, config.seed)  # of every random number: (stream, step, micro-batch) -> seed
    T, steps, rows = config.model.block_size, config.train.steps, config.train.batch_size
    micro_rows = rows // config.train.grad_accum
    largest_norm = config.train.grad_clip or math.inf

    def loss_of(net: "Net", batch: batches.Batch) -> "Tensor":
        """Mean cross-entropy, in nats per token."""
        x, y = (torch.from_numpy(tokens).to(compute.device, non_blocking=True) for tokens in batch)
        with compute.autocast():
            logits = net(x)  # (B, T, V)
        return F.cross_entropy(logits.flatten(0, 1).float(), y.flatten())

    micro_batch = batches.training_batch(data.train, T, micro_rows, seed_of("data", 0))
    model, net = rehearsed(config, data.tokenizer.vocab_size, compute, lambda net: loss_of(net, micro_batch))
    optimizers = new_optimizers(model, config.optim)

    run.lock()
    if not config.fresh and runs.has_ended(run.folder):  # while the lock was another process's
        return
    start = 0 if config.fresh else state.resume(run.checkpoints, run.folder.name, model, optimizers)
    logged = cut(run.metrics, start)
    # The evaluation with the lowest val/loss, but for step 0's: its step and that loss.
    evaluated = [row for row in logged if "val/loss" in row and row["step"] > 0]
    lowest = min(evaluated, key=lambda row: row["val/loss"], default=None)
    best = {key: lowest[key] for key in ("step", "val/loss")} if lowest else None
    here = environment(config, str(compute.device), compute.precision, threads, compiled=net is not model)
    run.open(config, here, start, best)
    n_parameters = f"{sum(p.numel() for p in model.parameters()):,} parameters"
    where = f"{compute.device} in {compute.precision}, {threads} threads"
    going_on = f"; going on from step {start:,} of {steps:,}" if start else ""
    print(f"{run.folder}: {n_parameters}, {where}{going_on}", flush=True)

    def save(step: int) -> None:
        """Unless this step is saved, or the weights are not finite: then the next loss will say so."""
        weights = state.model_tensors(model)
        if step == run.status["saved"] or not state.all_finite(weights):
            return
        moments, structure = state.optimizer_state(model, optimizers)
        meta = checkpoint.Meta(
            step=step,
            config=config,
            tokenizer=data.tokenizer.spec,
            fingerprint=data.fingerprint,
            run=run.folder.name,
            optimizer=structure,
        )
        metrics.sync()
        checkpoint.save(run.checkpoints, meta, weights | moments, best["step"] if best else None)
        run.write_status(step=step, saved=step)

    since = time.perf_counter()
    begun = since - (logged[-1]["seconds"] if logged else 0.0)
    aside, timed_steps = 0.0, 0  # since the last row: seconds not spent on training; updates done
    with (
        interrupts.deferred() as stop,
        run.recording(),
        Metrics(run.metrics) as metrics,
        ProgressLine(start, steps) as progress,
    ):
        for step in range(start, steps + 1):  # one more than there are updates: the last evaluates and saves
            last = step == steps
            row: dict[str, float] = {}  # what is measured at this step

            tick = time.perf_counter()
            try:  # a signal is looked at here only, where the model is that of this step
                stop.check()
                if last or is_due(step, config.train.eval_every):
                    windows = batches.fixed_windows(data.val, T, config.train.eval_windows, micro_rows)
                    row["val/loss"] = evaluate(model, loss_of, stop.watching(windows))
                if last:
                    whole = batches.whole_split(data.val, T, micro_rows)
                    shown = progress.through(step, whole, len(data.val) - 1)
                    row["val/full_loss"] = evaluate(model, loss_of, stop.watching(shown))
            except interrupts.Interrupted:
                save(step)
                raise
            if "val/loss" in row and (step > 0 or last) and (not best or row["val/loss"] < best["val/loss"]):
                best = {"step": step, "val/loss": row["val/loss"]}
            is_best = best is not None and best["step"] == step
            if last or is_best or (step > 0 and is_due(step, config.train.checkpoint_every)):
                save(step)
            aside += time.perf_counter() - tick

            if not last:
                rate = config.optim.learning_rate * rate_scale(step, steps, config.schedule)
                x, y = batches.training_batch(data.train, T, rows, seed_of("data", step))
                loss = torch.zeros((), device=compute.device)
                for micro in range(config.train.grad_accum):
                    part = slice(micro * micro_rows, (micro + 1) * micro_rows)
                    torch.manual_seed(seed_of("dropout", step, micro))
                    micro_loss = loss_of(net, (x[part], y[part])) / config.train.grad_accum
                    micro_loss.backward()  # adds to the gradients
                    loss += micro_loss.detach()
                grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), largest_norm)
                for optimizer in optimizers:
                    for group in optimizer.param_groups:
                        group["lr"] = rate
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=True)
                timed_steps += 1
                if is_due(step, config.train.log_every):
                    row |= {"train/loss": loss.item(), "train/grad_norm": grad_norm.item(), "train/lr": rate}
                    now = time.perf_counter()  # after .item(): a GPU has done its work, too
                    row["train/tokens_per_s"] = timed_steps * rows * T / (now - since - aside)
                    since, aside, timed_steps = now, 0.0, 0

            if row:
                metrics.write(
                    {"step": step, "tokens": step * rows * T, "seconds": time.perf_counter() - begun} | row
                )
                progress.update(step, row)
                run.write_status(step=step, best=best, final=row.get("val/full_loss"))
            if reason := not_finite(row):
                run.write_status(state="diverged", reason=reason)
                break


def is_due(step: int, every: int) -> bool:
    """Whether something done every so many steps is done at ``step``; every 0 is never."""
    return every > 0 and step % every == 0


def not_finite(row: dict[str, float]) -> str | None:
    """What in the row is not finite, or None."""
    return next((f"{key} is {value}" for key, value in row.items() if not math.isfinite(value)), None)


def report(folder: Path, already: bool = False) -> float:
    """Say how a run ended. Returns its val/full_loss, infinity where it diverged, as a sweeper expects it."""
    status = runs.read_status(folder)
    again = ""
    if already:
        again = "; nothing left to do (fresh=true starts over)"
        if changed := changed_code(runs.read_json(folder / "environment.json")):
            again += f"; made by other code, changed since: {', '.join(changed)}"
    if status["state"] == "diverged":
        print(f"{folder}: diverged by step {status['step']:,} ({status['reason']}){again}")
        return math.inf
    print(f"{folder}: finished, val/full_loss {status['final']:.4f}{again}")
    if not already:
        print(f"sample from it: python sample.py run={shlex.quote(str(folder))}")
    return float(status["final"])


@cli.command("config", RunConfig)
def main(config: RunConfig) -> float:
    data = prepare(**config.data.model_dump())
    data.check_length(config.model.block_size)
    if not config.fresh and (folder := runs.ended_here(config, data.fingerprint)):
        return report(folder, already=True)
    print(
        f"norm={config.norm.name} placement={config.placement.name} seed={config.seed}: "
        f"{len(data.train):,} training tokens, vocabulary of {data.tokenizer.vocab_size}",
        flush=True,
    )
    from training import device

    compute = device.choose(config.device, config.precision)
    folder = runs.run_folder(config, compute.precision, data.fingerprint)
    if not config.fresh and runs.has_ended(folder):
        return report(folder, already=True)
    with runs.Run(folder) as run:
        train(config, data, compute, run)
    return report(folder)


if __name__ == "__main__":
    main()
