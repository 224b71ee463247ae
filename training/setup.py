"""Build the objects of train.py's loop. Nothing of the run is written to disk before the model, its compiled
form and an evaluation have been tried on one batch."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from cli import app
from cli.schema import RunConfig
from data.token_files import Prepared
from diagnostics import causality
from rundir import wandb_sink
from rundir.environment import environment
from rundir.folder import AlreadyEndedError, Run, has_ended
from rundir.identity import group_name
from system import signals
from system.terminal import announced
from training import checkpoints, cost, device, memory, rehearsal
from training.batches import Batches, MicroBatch
from training.build import resolved_auto
from training.certify import Certifier
from training.checkpoints import Checkpoints
from training.compile import compile_loss
from training.device import Compute
from training.divergence import Divergence, find_non_finite
from training.evaluation import Evaluator, evaluate, modules_with_running_estimates
from training.log import RunLog
from training.loss import Loss
from training.optimizer import Optimizer
from training.parallel.ranks import Ranks, lost_ranks_explained
from training.parallel.strategies import Strategy
from training.schedule import Schedule
from training.state import describe_initialisation
from training.step_statistics import Statistics


@dataclass(frozen=True)
class Setup:
    """The objects of the loop; each class has a file of its own."""

    compute: Compute  # the device and the precision
    #           one process  DDP          FSDP
    # .model    the GPT      the GPT      the whole GPT, inside full_model() only: to evaluate, measure, save
    # .trained  the GPT      the GPT      the shards, which the optimizer updates
    # .net      the GPT      its wrapper  the shards: what a step calls
    strategy: Strategy
    batches: Batches
    loss_of: Loss  # (net, x, y) -> nats per token, 0-d; compiled together with the net if that pays
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
    """Build what the loop uses, and resume the run if it has a checkpoint.

    Raises:
        UserError: the settings do not work, memory or disk is too small, or no checkpoint is usable.
        AlreadyEndedError: another process has ended this run in the meantime.
    """
    config, vocab_size = run.config, tokens.tokenizer.vocab_size
    wandb_mode = wandb_sink.wandb_mode(config) if ranks.first else "disabled"
    compute = device.choose(config.device, config.precision)
    threads = device.set_switches(compute, config.train.threads, config.deterministic)

    # build the model (training/build.py: norm, placement) and put one batch through it
    batches = Batches(config, tokens, compute, ranks)
    eager_loss = Loss(compute)  # not compiled
    with memory.explained(config), announced("preparing the run"):  # explains a lack of memory
        batch = batches.first_micro_batch(0)
        strategy = build_strategy(config, vocab_size, batch, batches, eager_loss, ranks)
        running_norms = find_running_norms(strategy, batch, batches, eager_loss)  # such as BatchNorm
        hardware = compute.device.type, compute.precision, ranks.max(threads) * ranks.count
        compiles = cost.worth_compiling(config, vocab_size, *hardware)
        loss = compile_loss(strategy, batch, eager_loss, ranks) if compiles else eager_loss
        optimizer = Optimizer(strategy.trained, config.optim, config.train.grad_clip)
        schedule = Schedule(config.schedule, config.optim.learning_rate, config.train.steps)
        start = lock_and_resume(run, strategy, optimizer, ranks)  # from here on only this process writes
        certifier = Certifier(run, tokens, strategy, batches, loss, ranks)
        certificate = certifier.start(resumed=start > 0)  # tests the untrained model for causality
        log = RunLog(run, compute, ranks, start)
        locate = partial(find_non_finite, strategy, batches, eager_loss, ranks)
        divergence = Divergence(config.train, batches.fixed_windows(), schedule.warmup, locate, log.earlier)
        memory.check_disk(run, strategy.model)
        environment_json = environment_of(run, tokens, strategy, loss, threads, ranks)
    run.begin(environment_json, certificate, log.best, start)  # writes these files: now the run exists
    log.begin()  # and drops later rows of metrics.jsonl
    announce(run, environment_json, strategy, certificate, start)

    with (
        # the outermost, as it also copies how the run ended
        wandb_sink.copied_to_wandb(wandb_mode, config, run.folder, environment_json["group"], start),
        signals.deferred(ranks.max) as stop,  # a signal only sets ``stop``: see checkpoints.ending_on_signal
        run.recording(),  # writes status.json: running, then how the run ended; suppresses Diverged
        log,  # opens metrics.jsonl and starts the clock
        memory.explained(config),
        lost_ranks_explained(),  # reports a lost process in one line
    ):
        yield Setup(
            compute=compute,
            strategy=strategy,
            batches=batches,
            loss_of=loss,
            optimizer=optimizer,
            schedule=schedule,
            start=start,
            certifier=certifier,
            evaluate=Evaluator(strategy, batches, eager_loss, ranks, running_norms, stop, log),
            statistics=Statistics(strategy, eager_loss, ranks, config.stats, log.clock),
            checkpoints=Checkpoints(run, strategy, optimizer, tokens, ranks, log, stop),
            log=log,
            divergence=divergence,
        )


def build_strategy(
    config: RunConfig, vocab_size: int, batch: MicroBatch, batches: Batches, loss: Loss, ranks: Ranks
) -> Strategy:
    """Return the model's strategy, after ``batch`` and windows of all lengths have been through it. Raises
    ConfigError."""
    loss_of_step = partial(loss, x=batch.x, y=batch.y)
    evaluated = [[each] for each in (next(batches.fixed_windows()), *batches.shorter_window())]
    evaluation = partial(evaluate, loss_of=loss.of_batch, rounds=evaluated, ranks=Ranks())  # as if alone
    with announced("trying the model on one batch"):
        return rehearsal.build_and_try(config, vocab_size, loss.compute, loss_of_step, evaluation, ranks)


def find_running_norms(
    strategy: Strategy, batch: MicroBatch, batches: Batches, loss: Loss
) -> list[nn.Module]:
    """Return the modules that normalize by running estimates in evaluation; none if the validation split is
    too short to measure them on."""
    if next(batches.micro_windows(), None) is None:
        return []
    with strategy.full_model():
        return modules_with_running_estimates(strategy.model, partial(loss, x=batch.x, y=batch.y))


def lock_and_resume(run: Run, strategy: Strategy, optimizer: Optimizer, ranks: Ranks) -> int:
    """Lock the run's folder, unless open_run found and locked it, and load the newest checkpoint. Return the
    step at which the run starts. Raises AlreadyEndedError, CheckpointError."""
    run.claim()
    if run.config.fresh:
        return 0
    if ranks.broadcast(has_ended(run.folder)):
        raise AlreadyEndedError  # another process was faster; open_run suppresses this, main reports the run
    with announced("loading the checkpoint"), strategy.full_model():
        return checkpoints.resume(run, strategy, optimizer, ranks)


def environment_of(
    run: Run, tokens: Prepared, strategy: Strategy, loss: Loss, threads: int, ranks: Ranks
) -> dict[str, Any]:
    """Return the content of environment.json: where and how the run is trained, with ``auto`` resolved."""
    config, compute, sweep = run.config, loss.compute, app.sweep_record()
    computed = {
        "threads": threads,
        "compile": loss.is_compiled,
        "deterministic": config.deterministic,
        "ranks": ranks.count,
        "device": str(compute.device),
        "gpu": compute.gpu(),
        "precision": compute.precision,
        "parameters": sum(p.numel() for p in strategy.model.parameters()),
        "settled": resolved_auto(config),
        "overrides": app.arguments(),
        "command": [sys.executable, sys.argv[0], *map(app.as_typed, sys.argv[1:])],
        "plan": sweep.get("plan"),
        "roles": [sweep["role"]] if sweep.get("role") else [],
        "distributed": config.distributed,
        "group": group_name(config, compute.precision, tokens.fingerprint),
    }
    return environment(config, tokens, computed)


def announce(
    run: Run, environment_json: dict[str, Any], strategy: Strategy, certificate: dict[str, Any], start: int
) -> None:
    """Print the size and the settings of the model, and whether it is causal."""
    config = run.config
    parameters, ranks, threads = (environment_json[key] for key in ("parameters", "ranks", "threads"))
    resuming = f"; resuming from step {start:,} of {config.train.steps:,}" if start else ""
    ranks_of = f"{ranks} ranks of " if ranks > 1 else ""
    print(f"{parameters:,} parameters, {ranks_of}{threads} threads{resuming}", flush=True)
    if resolved := environment_json["settled"]:
        settings = " ".join(f"{key}={str(value).lower()}" for key, value in resolved.items())
        print(f"with {config.label()}: {settings}")
    if config.init_from and not start:
        print(describe_initialisation(strategy.model, config.init_from))
    print(causality.describe(certificate["start"], config.label()), flush=True)
