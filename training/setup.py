"""Build the objects of train.py's loop. Nothing of the run is written to disk before its model has been
tried on one batch."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from cli.compose import arguments
from data.prepared import Prepared
from model import GPT
from probe import causality
from training import checkpoint, device
from training.batches import Batches
from training.build import build_and_try, describe_initialisation, explained, resolved_auto
from training.checkpoint import Checkpoints
from training.ddp import Ranks, wrap
from training.device import Compute
from training.divergence import Divergence, find_non_finite, has_collapsed, unigram_entropy
from training.environment import environment
from training.identity import group_name, weights_digest
from training.log import RunLog
from training.loss import Evaluator, Loss, evaluate, modules_with_running_estimates
from training.observation import Certifier, Statistics
from training.optimizer import Optimizer
from training.run_folder import Run, read_json, read_rows
from training.schedule import Schedule
from training.signals import Stop
from training.wandb_sink import Wandb, wandb_mode


@dataclass(frozen=True)
class Setup:
    """The objects of the loop; each class has a file of its own."""

    compute: Compute  # the device and the precision
    net: Any  # what a step calls: the model, or with several ranks its DDP
    batches: Batches
    loss_of: Loss  # (net, x, y) -> nats per token, 0-d; possibly compiled together with the net
    optimizer: Optimizer  # AdamW, or Muon and AdamW; clips the gradient, skips non-finite updates
    schedule: Schedule  # step -> learning rate
    start: int  # the step at which the run starts or resumes
    certifier: Certifier  # tests whether logits depend on later tokens or other rows
    evaluate: Evaluator
    statistics: Statistics
    checkpoints: Checkpoints
    log: RunLog
    divergence: Divergence


@contextmanager
def set_up(run: Run, tokens: Prepared, ranks: Ranks) -> Iterator[Setup]:
    """Context manager: build what the loop uses, and resume the run if it has a checkpoint. At the end
    record how the run ended. In this order:

    1. Choose the device; build the model; try it on one batch, and on a shorter one.
    2. Compile the loss, if wanted; make the optimizer.
    3. Create the folder; restore the newest checkpoint, if there is one.
    4. Test whether the model is causal: the certificate.
    5. Start wandb; write the files that describe the run; open metrics.jsonl.
    6. Yield: the loop of train.py trains.
    7. Judge whether the run collapsed; record how it ended.

    Raises:
        UserError: the settings do not work, memory or disk is too small, or no checkpoint is usable.
    """
    config, train = run.config, run.config.train
    mode = wandb_mode(config) if ranks.first else "disabled"
    compute = device.choose(config.device, config.precision)
    threads = device.set_switches(train.threads, config.deterministic)
    batches = Batches(config, tokens, compute, ranks)
    eager_loss = Loss(compute)  # not compiled
    with device.memory_explained(device.out_of_memory(config)):
        # build the model (training/build.py: norm, placement), and put one batch through it
        batch = batches.first_micro_batch(0)
        loss_of_step = partial(eager_loss, x=batch.x, y=batch.y)
        model = build_and_try(config, tokens.tokenizer.vocab_size, compute, loss_of_step)
        with explained(config):  # the last window of the split may be shorter; each rank tries it alone
            evaluate(model, eager_loss.of_batch, ([window] for window in batches.shorter_window()), Ranks())
        net = wrap(model, ranks)
        running_norms = []  # evaluated on batch statistics, too, if the windows fill a micro-batch
        if batches.n_fixed >= batches.micro_rows:
            running_norms = modules_with_running_estimates(model, loss_of_step)
        loss_of = eager_loss
        if config.compile is True or (config.compile == "auto" and compute.device.type == "cuda"):
            from training.compile import compile_loss  # imports the compiler

            loss_of = compile_loss(model, net, batch, eager_loss, ranks.count)
        optimizer = Optimizer(model, config.optim, train.grad_clip)
        schedule = Schedule(config.schedule, config.optim.learning_rate, train.steps)

        run.claim()  # creates the folder; from here on only this process writes to it
        start, best = resume(run, model, optimizer, ranks)
        certifier = Certifier(run, model, batches)
        certificate = certifier.start(resumed=start > 0)

    computed = {
        "device": str(compute.device),
        "gpu": compute.gpu(),
        "precision": compute.precision,
        "threads": threads,
        "ranks": ranks.count,
        "compile": loss_of is not eager_loss,
        "deterministic": config.deterministic,
        "parameters": sum(p.numel() for p in model.parameters()),
        "settled": resolved_auto(config),
        "init_from": weights_digest(config),
        "overrides": arguments(),
        "command": [sys.executable, *sys.argv],
        "group": group_name(config, compute.precision, tokens.fingerprint),
        "data": {
            "fingerprint": tokens.fingerprint,
            "vocab_size": tokens.tokenizer.vocab_size,
            "train_tokens": len(tokens.train),
            "val_tokens": len(tokens.val),
        },
    }
    environment_json = environment(config, computed)
    stop = Stop(ranks.max)  # inside with, a signal only sets a flag: see checkpoints.ending_on_signal
    wandb = Wandb(mode, config, run.folder, environment_json, start)
    try:
        with stop, run.recording(environment_json, certificate, best, start):  # suppresses Diverged
            announce(run, model, compute, computed, certificate, start)
            with (  # opens metrics.jsonl, starts the clock
                RunLog(run, compute, ranks, wandb, start, best) as log,
                device.memory_explained(device.out_of_memory(config)),
            ):
                yield Setup(
                    compute=compute,
                    net=net,
                    batches=batches,
                    loss_of=loss_of,
                    optimizer=optimizer,
                    schedule=schedule,
                    start=start,
                    certifier=certifier,
                    evaluate=Evaluator(model, batches, eager_loss, ranks, running_norms, stop, log),
                    statistics=Statistics(model, eager_loss, ranks, config.stats, log.clock),
                    checkpoints=Checkpoints(run, model, optimizer, tokens, ranks, log, stop),
                    log=log,
                    divergence=Divergence(partial(find_non_finite, model, batches, eager_loss, ranks)),
                )
                entropy = unigram_entropy(batches.whole_split())
                run.write_status(collapsed=has_collapsed(run.status["final"], log.train_loss, entropy))
    finally:
        last = checkpoint.path_of(run.checkpoints, train.steps)
        wandb.finish(run.status, partial(read_rows, run.metrics), read_json(run.certificate), last)


def resume(run: Run, model: GPT, optimizer: Optimizer, ranks: Ranks) -> tuple[int, dict[str, Any] | None]:
    """Restore the newest usable checkpoint, which rank 0 finds. Return the step at which the run starts,
    and its best evaluation so far."""
    if run.config.fresh:
        return 0, None
    restore = partial(checkpoint.resume, run.checkpoints, run.folder.name, model=model)
    meta = restore(step=None, optimizers=optimizer.optimizers) if ranks.first else None
    if not (step := ranks.broadcast(meta.step if meta else 0)):
        return 0, None
    meta = meta or restore(step=step, optimizers=optimizer.optimizers)
    return step, meta.best if meta else None


def announce(
    run: Run, model: GPT, compute: Compute, computed: dict[str, Any], certificate: dict[str, Any], start: int
) -> None:
    """Print where the run is trained, what its model is made of, and whether it is causal."""
    if run.config.init_from and not start:
        print(describe_initialisation(model, run.config.init_from))
    label, ranks = run.config.label(), computed["ranks"]
    begins = f"resumes from step {start:,} of {run.config.train.steps:,}" if start else "begins"
    ranks_of = f"{ranks} ranks of " if ranks > 1 else ""
    size = f"{computed['parameters']:,} parameters, {ranks_of}{computed['threads']} threads"
    print(f"{run.folder}: {begins} on {compute}; {size}", flush=True)
    if resolved := computed["settled"]:
        settings = " ".join(f"{key}={str(value).lower()}" for key, value in resolved.items())
        print(f"with {label}: {settings}")
    print(causality.describe(certificate["start"], label), flush=True)
