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
from typing import TYPE_CHECKING, Any

from data import batches
from data.prepared import Prepared, prepare
from training import checkpoint, cli, runs
from training.components import build_model
from training.config import ConfigError, RunConfig
from training.environment import environment
from training.tracking import Metrics, ProgressLine

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


def rehearse(model: "nn.Module", net: "Net", loss_of: "LossOf", batch: batches.Batch) -> None:
    """One forward and backward through ``net``, a view of ``model``, that leaves no trace: what cannot work
    is heard of before anything is written."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    loss_of(net, batch).backward()
    model.zero_grad(set_to_none=True)
    for name, buffer in model.named_buffers():
        buffer.copy_(buffers[name])


def train(config: RunConfig, data: Prepared, compute: "Compute", folder: Path) -> None:
    """Train from step 0 to the last; the folder then holds all there is to know."""
    import torch
    import torch.nn.functional as F

    from model.streams import stream_seed
    from training.device import set_switches
    from training.optim import new_optimizer, rate_scale

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

    # The model is the truth, net a fast view of it.
    try:
        model = build_model(config, data.tokenizer.vocab_size).to(compute.device)
        micro_batch = batches.training_batch(data.train, T, micro_rows, seed_of("data", 0))
        rehearse(model, model, loss_of, micro_batch)
    except ConfigError:
        raise
    except (MemoryError, ValueError, RuntimeError) as error:  # too large, or sizes that the norm cannot take
        why = (str(error) or "out of memory").splitlines()[0]
        raise ConfigError(
            f"norm={config.norm.name} placement={config.placement.name}: {why}; "
            "choose another norm, or other sizes of model and train.batch_size"
        ) from error
    net: Net = model
    if config.compile:
        try:
            net = torch.compile(model)
            rehearse(model, net, loss_of, micro_batch)
        except Exception as error:  # whatever a compiler may raise
            print(f"compile: failed, going on without ({type(error).__name__})", flush=True)
            net = model
    optimizer = new_optimizer(model, config.optim)

    run = runs.Run(folder)
    run.create(config, environment(config, str(compute.device), compute.precision, threads))
    n_parameters = f"{sum(p.numel() for p in model.parameters()):,} parameters"
    print(f"{folder}: {n_parameters}, {compute.device} in {compute.precision}, {threads} threads", flush=True)

    best: dict[str, Any] | None = None  # the evaluation with the lowest val/loss: its step and that loss

    def save(step: int) -> None:
        meta = checkpoint.Meta(
            step=step, config=config, tokenizer=data.tokenizer.spec, fingerprint=data.fingerprint
        )
        tensors = checkpoint.model_tensors(model) | checkpoint.optimizer_tensors(model, optimizer)
        checkpoint.save(run.checkpoints, meta, tensors, best["step"] if best else None)

    start = since = time.perf_counter()
    aside, timed_steps = (
        0.0,
        0,
    )  # since the last row: seconds spent on other things than training; updates done
    with run.recording(), Metrics(folder / "metrics.jsonl") as metrics, ProgressLine(steps) as progress:
        for step in range(steps + 1):  # one more than there are updates: the last evaluates and saves
            last = step == steps
            row: dict[str, float] = {}  # what is measured at this step

            tick = time.perf_counter()
            if last or is_due(step, config.train.eval_every):
                windows = batches.fixed_windows(data.val, T, config.train.eval_windows, micro_rows)
                row["val/loss"] = evaluate(model, loss_of, windows)
                if (step > 0 or last) and (best is None or row["val/loss"] < best["val/loss"]):
                    best = {"step": step, "val/loss": row["val/loss"]}
            if last:
                whole = batches.whole_split(data.val, T, micro_rows)
                row["val/full_loss"] = evaluate(
                    model, loss_of, progress.through(step, whole, len(data.val) - 1)
                )
            is_best = best is not None and best["step"] == step
            due = last or is_best or (step > 0 and is_due(step, config.train.checkpoint_every))
            if due and checkpoint.all_finite(checkpoint.model_tensors(model)):  # else the next loss says so
                save(step)
            aside += time.perf_counter() - tick

            if not last:
                rate = config.optim.learning_rate * rate_scale(step, steps, config.schedule)
                for group in optimizer.param_groups:
                    group["lr"] = rate
                x, y = batches.training_batch(data.train, T, rows, seed_of("data", step))
                loss = torch.zeros((), device=compute.device)
                for micro in range(config.train.grad_accum):
                    part = slice(micro * micro_rows, (micro + 1) * micro_rows)
                    torch.manual_seed(seed_of("dropout", step, micro))
                    micro_loss = loss_of(net, (x[part], y[part])) / config.train.grad_accum
                    micro_loss.backward()  # adds to the gradients
                    loss += micro_loss.detach()
                grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), largest_norm)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                timed_steps += 1
                if is_due(step, config.train.log_every):
                    row |= {"train/loss": loss.item(), "train/grad_norm": grad_norm.item(), "train/lr": rate}
                    now = time.perf_counter()  # after .item(): a GPU has done its work, too
                    row["train/tokens_per_s"] = timed_steps * rows * T / (now - since - aside)
                    since, aside, timed_steps = now, 0.0, 0

            if row:
                seconds = time.perf_counter() - start
                metrics.write({"step": step, "tokens": step * rows * T, "seconds": seconds} | row)
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
    again = "; nothing left to do (fresh=true starts over)" if already else ""
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
    train(config, data, compute, folder)
    return report(folder)


if __name__ == "__main__":
    main()
