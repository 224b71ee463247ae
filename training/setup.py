"""Build the objects of train.py's loop. Nothing is written to disk before the model has been tried on one
batch."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch

from cli.compose import arguments_of_this_run
from cli.schema import RunConfig
from data.prepared import Prepared
from model import GPT
from probe import causality
from training import device
from training.batches import Batches
from training.build import build_and_try, explained, resolved_auto
from training.checkpoint import Checkpoints, path_of, resume
from training.ddp import Ranks, wrap
from training.divergence import Divergence, find_non_finite, has_collapsed, unigram_entropy
from training.environment import environment
from training.identity import group_name, weights_digest
from training.log import RunLog
from training.loss import Evaluator, Loss, evaluate, modules_with_running_estimates
from training.observation import Certifier, Statistics
from training.optimizer import Optimizer
from training.run_folder import Run, read_json
from training.schedule import Schedule
from training.signals import Stop
from training.wandb_sink import Wandb, wandb_mode


def try_model(config: RunConfig, batches: Batches, loss: Loss) -> GPT:
    """Build the config's model and try it: one forward and backward of a batch, and one forward of the
    validation split's shorter last window. Raises UserError if the settings do not work or memory is too
    small."""
    vocab_size, batch = batches.tokens.tokenizer.vocab_size, batches.first_micro_batch(0)
    model = build_and_try(config, vocab_size, batches.compute, partial(loss, x=batch.x, y=batch.y))
    with explained(config):  # each rank tries it alone
        evaluate(model, loss.of_batch, ([window] for window in batches.shorter_window()), Ranks())
    return model


class Setup:
    """The objects of the loop; each class has a file of its own. They are built in this order:

    1. Choose the device; build the model; try it on one batch, and on a shorter one.
    2. Compile the loss, if wanted; make the optimizer.
    3. Create the folder; restore the newest checkpoint, if there is one.
    4. Test whether the model is causal: the certificate.
    5. Start wandb.

    Raises:
        UserError: the settings do not work, memory or disk is too small, or no checkpoint is usable.
    """

    def __init__(self, run: Run, tokens: Prepared, ranks: Ranks) -> None:
        config, train = run.config, run.config.train
        mode = wandb_mode(config) if ranks.first else "disabled"
        self.compute = device.choose(config.device, config.precision)  # the device and the precision
        on_gpu = self.compute.device.type == "cuda"
        threads = device.set_switches(train.threads, config.deterministic)
        self.batches = Batches(config, tokens, self.compute, ranks)
        loss = Loss(self.compute)
        with device.memory_explained(device.out_of_memory_message(config)):
            # build the model (training/build.py: norm, placement), and put one batch through it
            model = try_model(config, self.batches, loss)
            batch = self.batches.first_micro_batch(0)
            running_norms = []  # evaluated on batch statistics, too, if the windows fill a micro-batch
            if self.batches.n_fixed >= self.batches.micro_rows:
                running_norms = modules_with_running_estimates(model, partial(loss, x=batch.x, y=batch.y))
            # what a step calls: the model, wrapped in DDP if there are several ranks
            self.net = wrap(model, ranks)
            # (net, x, y) -> nats per token, 0-d; possibly compiled together with the net
            self.loss_of = loss
            if config.compile is True or (config.compile == "auto" and on_gpu):
                from training.compile import compile_loss  # imports the compiler

                self.loss_of = compile_loss(model, self.net, batch, loss, ranks.count)
            # AdamW, or Muon and AdamW; clips the gradient, skips non-finite updates
            self.optimizer = Optimizer(model, config.optim, train.grad_clip)
            # step -> learning rate
            self.schedule = Schedule(config.schedule, config.optim.learning_rate, train.steps)

            run.claim()  # creates the folder; from here on only this process writes to it
            # the step at which the run starts or resumes
            self.start, self.best = resume(run, model, self.optimizer, ranks)
            # tests whether logits depend on later tokens or other rows
            self.certifier = Certifier(run, model, self.batches)
            self.certificate = self.certifier.start(resumed=self.start > 0)

        self.environment = environment(
            config,
            {
                "device": str(self.compute.device),
                "gpu": torch.cuda.get_device_name(self.compute.device) if on_gpu else None,
                "precision": self.compute.precision,
                "threads": threads,
                "ranks": ranks.count,
                "compile": self.loss_of is not loss,
                "deterministic": config.deterministic,
                "parameters": sum(p.numel() for p in model.parameters()),
                "settled": resolved_auto(config),
                "init_from": weights_digest(config),
                "overrides": arguments_of_this_run(),
                "command": [sys.executable, *sys.argv],
                "group": group_name(config, self.compute.precision, tokens.fingerprint),
                "data": {
                    "fingerprint": tokens.fingerprint,
                    "vocab_size": tokens.tokenizer.vocab_size,
                    "train_tokens": len(tokens.train),
                    "val_tokens": len(tokens.val),
                },
            },
        )
        self.wandb = Wandb(mode, config, run.folder, self.environment, self.start)
        self.log = RunLog(run, self.compute, ranks, self.wandb, self.start, self.best)
        self.stop = Stop(ranks.max)  # inside ``with`` a signal only sets a flag
        # step -> the validation losses that are due
        self.evaluate = Evaluator(model, self.batches, loss, ranks, running_norms, self.stop, self.log)
        self.statistics = Statistics(model, loss, ranks, config.stats, self.log)
        # saves the run; at a signal, also ends it
        self.checkpoints = Checkpoints(run, model, self.optimizer, tokens, ranks, self.log, self.stop)
        self.divergence = Divergence(partial(find_non_finite, model, self.batches, loss, ranks))


@contextmanager
def set_up(run: Run, tokens: Prepared, ranks: Ranks) -> Iterator[Setup]:
    """Context manager: build what the loop uses, and resume the run if it has a checkpoint. At the end judge
    whether the run collapsed, and record how it ended. Raises UserError, as ``Setup`` does."""
    s = Setup(run, tokens, ranks)
    try:
        with s.stop, run.recording():  # suppresses Diverged
            run.begin(s.environment, s.certificate, s.best, s.start)
            announce(run, s)
            with s.log, device.memory_explained(device.out_of_memory_message(run.config)):
                yield s
                entropy = unigram_entropy(s.batches.whole_split())
                run.write_status(collapsed=has_collapsed(run.status["final"], s.log.train_loss, entropy))
    finally:
        last = path_of(run.checkpoints, run.config.train.steps)
        s.wandb.finish(run.status, read_json(run.certificate), last)


def announce(run: Run, s: Setup) -> None:
    """Print where the run is trained, what its model is made of, and whether it is causal."""
    label, ranks = run.config.label(), s.environment["ranks"]
    begins = f"resumes from step {s.start:,} of {run.config.train.steps:,}" if s.start else "begins"
    ranks_of = f"{ranks} ranks of " if ranks > 1 else ""
    size = f"{s.environment['parameters']:,} parameters, {ranks_of}{s.environment['threads']} threads"
    print(f"{run.folder}: {begins} on {s.compute}; {size}", flush=True)
    if resolved := s.environment["settled"]:
        settings = " ".join(f"{key}={str(value).lower()}" for key, value in resolved.items())
        print(f"with {label}: {settings}")
    print(causality.describe(s.certificate["start"], label), flush=True)
