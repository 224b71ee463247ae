"""Train one GPT whose normalization is a choice.

    python train.py                                     layernorm before each branch, 37 plays of Shakespeare,
    a minute python train.py norm=batchnorm placement=post       another norm, elsewhere python train.py
    data=text data.path=FILE            another text python train.py -m norm=layernorm,none seed=0,1
    several runs, one after another python train.py --help                              every choice and
    default

Read it from the bottom: ``main`` finds or makes the run, ``train`` is the loop. Torch is imported inside
functions, as it takes a second: a typo in the command, or a run that is already finished, is answered before
that.
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
from training.tracking import Metrics, ProgressLine

if TYPE_CHECKING:
    from torch import Tensor, nn

    Net = Callable[[Tensor], Tensor]  # tokens (B, T) -> logits (B, T, V)
    LossOf = Callable[[Net, batches.Batch], Tensor]

AGAIN = "; nothing left to do (fresh=true starts over)"


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
    """One forward and backward that leaves no trace: what cannot work is heard of before step 0."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    loss_of(net, batch).backward()
    model.zero_grad(set_to_none=True)
    for name, buffer in model.named_buffers():
        buffer.copy_(buffers[name])


def train(config: RunConfig, data: Prepared) -> Path:
    """Train from step 0 to the last; returns the run's folder, which then holds all there is to know."""
    import torch
    import torch.nn.functional as F

    from model.streams import stream_seed
    from training import device as devices
    from training.optim import new_optimizer, rate_scale

    compute = devices.choose(config.device, config.precision)
    threads = devices.set_switches(compute, config.train.threads)
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

    # the model is the truth, net a fast view of it
    model = build_model(config, data.tokenizer.vocab_size).to(compute.device)
    first = batches.training_batch(data.train, T, micro_rows, seed_of("data", 0))
    try:
        rehearse(model, model, loss_of, first)
    except ValueError as error:
        raise ConfigError(f"norm={config.norm.name} placement={config.placement.name}: {error}") from None
    net: Net = model
    if config.compile:
        try:
            net = torch.compile(model)
            rehearse(model, net, loss_of, first)
        except Exception as error:  # whatever a compiler may raise
            print(f"compile: failed, going on without ({type(error).__name__})", flush=True)
            net = model
    optimizer = new_optimizer(model, config.optim)

    run = runs.Run(runs.run_folder(config, compute.precision, data.fingerprint))
    run.create(config, runs.environment(config, str(compute.device), compute.precision, threads))
    n_parameters = f"{sum(p.numel() for p in model.parameters()):,} parameters"
    print(
        f"{run.folder}: {n_parameters}, {compute.device} in {compute.precision}, {threads} threads",
        flush=True,
    )

    def save(step: int) -> None:
        meta = {
            "step": step,
            "config": config.model_dump(by_alias=True),
            "tokenizer": data.tokenizer.spec,
            "fingerprint": data.fingerprint,
        }
        tensors = checkpoint.model_tensors(model) | checkpoint.optimizer_tensors(model, optimizer)
        checkpoint.save(run.checkpoints, meta, tensors, best["step"])

    best: dict[str, Any] = {"step": None, "val/loss": math.inf}
    grad_norm = torch.zeros(())
    start, training_seconds, timed_steps = time.perf_counter(), 0.0, 0
    with run.recording(), Metrics(run.folder / "metrics.jsonl") as metrics, ProgressLine(steps) as progress:
        for step in range(steps + 1):  # one more than there are updates: the last evaluates and saves
            last = step == steps
            row: dict[str, float] = {"step": step, "tokens": step * rows * T}

            if last or is_due(step, config.train.eval_every):
                windows = batches.fixed_windows(data.val, T, config.train.eval_windows, micro_rows)
                row["val/loss"] = evaluate(model, loss_of, windows)
                if row["val/loss"] < best["val/loss"]:
                    best = {"step": step, "val/loss": row["val/loss"]}
            if last:
                windows = batches.whole_split(data.val, T, micro_rows)
                windows = progress.through(step, windows, targets=len(data.val) - 1)
                row["val/full_loss"] = evaluate(model, loss_of, windows)

            due = step > 0 and (step == best["step"] or is_due(step, config.train.checkpoint_every))
            if (last or due) and diverged(row) is None and math.isfinite(grad_norm.item()):
                save(step)  # never a weight that is not finite: the last update's gradient was

            if not last:
                tick = time.perf_counter()
                rate = config.optim.learning_rate * rate_scale(step, steps, config.schedule)
                for group in optimizer.param_groups:
                    group["lr"] = rate
                x, y = batches.training_batch(data.train, T, rows, seed_of("data", step))
                loss = torch.zeros((), device=compute.device)
                for micro in range(config.train.grad_accum):
                    some = slice(micro * micro_rows, (micro + 1) * micro_rows)
                    torch.manual_seed(seed_of("dropout", step, micro))
                    micro_loss = loss_of(net, (x[some], y[some])) / config.train.grad_accum
                    micro_loss.backward()  # adds to the gradients
                    loss += micro_loss.detach()
                grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), largest_norm)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                training_seconds += time.perf_counter() - tick
                timed_steps += 1
            if not last and step % config.train.log_every == 0:
                row |= {"train/loss": loss.item(), "train/grad_norm": grad_norm.item(), "train/lr": rate}
                row["train/tokens_per_s"] = timed_steps * rows * T / training_seconds
                training_seconds, timed_steps = 0.0, 0

            if len(row) > 2:
                metrics.write(row | {"seconds": time.perf_counter() - start})
                progress.update(step, row)
                run.write_status(step=step, best=best, final=row.get("val/full_loss"))
            if reason := diverged(row):
                run.write_status(state="diverged", reason=reason)
                break
    return run.folder


def is_due(step: int, every: int) -> bool:
    """Whether something done every so many steps is done at ``step``; every 0 is never."""
    return every > 0 and step % every == 0


def diverged(row: dict[str, float]) -> str | None:
    """What in the row is not finite, or None."""
    return next((f"{key} is {value}" for key, value in row.items() if not math.isfinite(value)), None)


def report(folder: Path, already: bool = False) -> float:
    """Say in one line how a run ended. Returns its val/full_loss, infinity where it diverged: what a sweep
    minimizes."""
    status = runs.read_status(folder)
    if status["state"] == "diverged":
        print(f"{folder}: diverged by step {status['step']:,} ({status['reason']})" + already * AGAIN)
        return math.inf
    print(f"{folder}: finished, val/full_loss {status['final']:.4f}" + already * AGAIN)
    if not already:
        print(f"sample from it: python sample.py run={shlex.quote(str(folder))}")
    return float(status["final"])


@cli.command("config", RunConfig)
def main(config: RunConfig) -> float:
    data = prepare(**config.data.model_dump())
    data.check_length(config.model.block_size)
    finished = None if config.fresh else runs.finished_run(config, data.fingerprint)
    if finished:
        return report(finished, already=True)
    print(
        f"norm={config.norm.name} placement={config.placement.name} seed={config.seed}: "
        f"{len(data.train):,} training tokens, vocabulary of {data.tokenizer.vocab_size}",
        flush=True,
    )
    return report(train(config, data))


if __name__ == "__main__":
    main()
