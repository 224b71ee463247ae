"""Train one GPT with the norm and the placement that you choose.

    python train.py                                    the defaults, on Shakespeare
    python train.py norm=NAME placement=NAME           a norm of conf/norm, a placement of conf/placement
    python train.py norm=NAME --config-dir FOLDER      a norm of your own: FOLDER/norm/NAME.yaml
    python train.py norm.eps=1e-6 train.steps=2000     keys: GROUP.KEY=VALUE
    python train.py data=text data.path=FILE           another text
    python train.py -m norm=NAME,NAME seed=0,1         several runs
    torchrun --nproc_per_node=2 train.py               one run by several processes (training/ddp.py)
    python train.py --help                             every choice and every key, with its default

The same command again    resumes the run, or reports that it has finished.
Ctrl-C                    saves at the end of the step, and ends the run.
NaN or infinity           is never used for an update; the run ends as diverged.

The defaults are in conf/config.yaml (steps, batch, evaluation), conf/optim (learning rate), conf/schedule
(warm-up, decay), conf/model (sizes).

``main`` opens the run's folder, runs/NAME (config, metrics, status, checkpoints); ``train`` is the loop.
Read training/setup.py next: it builds what the loop uses.
"""

import sys
from typing import Any

import hydra
from omegaconf import DictConfig

from cli.compose import arguments_for_hydra, help_on_keys, validated
from cli.errors import one_line_errors
from cli.schema import RunConfig
from data.prepared import Prepared
from training.ddp import Ranks, process_group
from training.open_run import load_tokens, open_run
from training.run_folder import Run
from training.schedule import due_at


def train(run: Run, tokens: Prepared, ranks: Ranks) -> None:
    """Train the run from its current step to its last one; write checkpoints, metrics and status. ``ranks``
    are the processes that torchrun started, or this process alone."""
    import torch  # imported here, so that a typo is reported before this takes a second

    from model.seeds import seed_torch
    from training.setup import set_up

    steps, grad_accum = run.config.train.steps, run.config.train.grad_accum

    # builds everything and tries it on one batch; on exit, also after an error, records how the run ended
    with set_up(run, tokens, ranks) as s:
        net, optimizer = s.net, s.optimizer  # net: the model, in DDP if there are several ranks

        for step in range(s.start, steps + 1):  # the last pass makes no update
            due = due_at(step, run.config.train, run.config.stats)  # whether to evaluate, save, log, …
            metrics: dict[str, Any] = {}  # what is measured at this step
            if step == 0:
                metrics |= s.certifier.metrics  # leaks from later tokens and other rows, before training

            # at intervals: evaluate, save
            if due.evaluation or due.checkpoint:
                s.divergence.check_updates(step, optimizer.skipped)  # Diverged: an update was skipped
            with s.checkpoints.ending_on_signal(step):  # Ctrl-C before or in this block saves and ends
                if due.evaluation:
                    metrics |= s.evaluate(step)  # val/loss; at the last step, val/full_loss too
            is_best = due.evaluation and s.log.update_best(step, metrics)
            if is_best or due.checkpoint:
                s.checkpoints.save(step)

            if due.statistics:  # an extra forward and backward, which leaves gradients and buffers alone
                sample = s.batches.first_micro_batch(step)
                metrics |= s.statistics.of_activations(sample, due.histograms)

            # one update
            if step < steps:
                loss = torch.zeros((), device=s.compute.device)
                for batch in s.batches.micro_batches(step):  # this rank's rows of each micro-batch
                    seed_torch(batch.dropout_seed)  # so a resumed run draws the same masks
                    net.require_backward_grad_sync = batch.is_last  # DDP averages over ranks once a step
                    # cross-entropy between net(batch.x) and the next tokens, batch.y; under autocast
                    micro_loss = s.loss_of(net, batch.x, batch.y) / grad_accum
                    micro_loss.backward()  # adds to the gradients
                    loss += micro_loss.detach()
                loss = ranks.mean(loss)
                learning_rate = s.schedule(step)  # warm-up, then decay
                with s.statistics.of_update(metrics, due.statistics):  # adds norms of gradients and update
                    grad_norm = optimizer.clip()  # to train.grad_clip; returns the norm before clipping
                    optimizer.update(learning_rate, loss, grad_norm)  # steps, if all was finite so far
                optimizer.zero_grad()
                if due.log or optimizer.skip_is_known():  # a skipped update ends the run
                    metrics |= {"train/loss": loss, "train/grad_norm": grad_norm, "train/lr": learning_rate}

            # log it
            metrics = s.log.write(step, metrics)  # copies tensors from the device, all at once
            s.divergence.check(step, metrics, optimizer.skipped)  # raises Diverged: the run ends

        with s.checkpoints.ending_on_signal(steps):
            s.certifier.end()  # tests the trained model for causality, on training text


def main(config: RunConfig) -> None:
    """Train a run unless it has already ended, and print how it ended."""
    with process_group(config.device) as ranks:
        tokens = load_tokens(config, ranks)
        with open_run(config, tokens, ranks) as (run, had_ended):  # same settings: resumes in the same folder
            if not had_ended:
                train(run, tokens, ranks)
        run.report(had_ended)


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def command(composed: DictConfig) -> None:
    """Run ``main`` with the config that Hydra composed of conf/ and the command line."""
    with one_line_errors():  # inside of Hydra, which would print one more line about an error
        main(validated(composed))


if __name__ == "__main__":
    with one_line_errors():
        if {"--help", "-h"} & {*sys.argv}:
            print(__doc__, help_on_keys(sys.argv[1:]), sep="\n")
        else:
            sys.argv[1:] = arguments_for_hydra(sys.argv[1:])
            command()
