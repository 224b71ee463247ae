"""Training steps in this process, to be timed in turn with those of other runs. For bench/norms.py and
bench/rank.py; nothing to run here.

train.py is what a user runs, and it has the loop; here are the same parts in the same order without what
looks at a run: statistics, log, evaluation, checkpoints."""

import contextlib
import io
import time
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench.measure import BenchError
from bench.sizes import Size
from cli.app import choices
from cli.schema import RunConfig
from training import compile, device, dry_run
from training.evaluation import Net, Objective, cross_entropy
from training.optimizer import Updates, new_optimizers
from training.parallel.ranks import Ranks

BLOCK = 12  # steps of one norm before it is the next one's turn; the first two are not counted


def prepare_torch() -> None:
    """Many models of one class are compiled in this process: each for its own shapes, and none forgotten."""
    dynamo: Any = torch._dynamo
    dynamo.config.recompile_limit = dynamo.config.accumulated_recompile_limit = 1024
    dynamo.config.automatic_dynamic_shapes = False


def configured(*overrides: str) -> RunConfig:
    """The config of a command line of train.py."""
    return choices("config", RunConfig, list(overrides))[""]


class Steps:
    """A run of train.py at this norm and size, on made-up tokens, ready to be stepped through.

    Its learning rate is so small that the weights stay what they are at the start: that is timed, not
    learned. Of several ranks each has its share of the batch. Raises BenchError where torch cannot compile
    the model.
    """

    def __init__(self, norm: str, size: Size, compiled: bool, *more: str, ranks: Ranks | None = None) -> None:
        ranks = ranks or Ranks()
        overrides = [*size.overrides(), "train.eval_every=0", "optim.learning_rate=1e-6", *more]
        self.config = configured(
            f"norm={norm}", "placement=pre", f"compile={str(compiled).lower()}", *overrides
        )
        size = replace(size, batch_size=size.batch_size // ranks.count)
        self.compute = device.choose(self.config.device, self.config.precision)
        device.set_switches(self.compute, self.config.train.threads)
        shape = (size.batch_size, size.block_size + 1)
        tokens = np.random.default_rng(ranks.rank).integers(size.vocab_size, size=shape)
        self.batch = tokens[:, :-1], tokens[:, 1:]
        self.objective: Objective = cross_entropy
        self.view = dry_run.rehearsed(self.config, size.vocab_size, self.compute, self.loss, ranks=ranks)
        if compiled:
            with contextlib.redirect_stdout(io.StringIO()):  # it says that compiling takes a while
                self.objective = compile.compiled(
                    self.view.trained, self.compute, partial(self.loss, self.view.net), False, ranks
                )
            if self.objective is cross_entropy:
                raise BenchError(f"norm={norm}: torch cannot compile the model here; --eager leaves that out")
        trained = self.view.trained
        optimizers = new_optimizers(trained, self.config.optim)
        self.updates = Updates([*trained.parameters()], optimizers, self.config.train.grad_clip)

    def loss(self, model: Net, objective: Objective = cross_entropy) -> Tensor:
        x, y = map(self.compute.tensor, self.batch)
        with self.compute.autocast():
            return objective(model, x, y)

    def step(self) -> None:
        """One update. Where another model was compiled since, the first call compiles once more."""
        loss = self.loss(self.view.net, self.objective)
        loss.backward()
        self.updates.step(loss.detach(), self.config.optim.learning_rate)

    def seconds(self) -> float:
        """Median over a block's steps, without the first two."""
        times = []
        for _ in range(BLOCK):
            start = time.perf_counter()
            self.step()
            self.compute.synchronize()
            times.append(time.perf_counter() - start)
        return median(times[2:])
