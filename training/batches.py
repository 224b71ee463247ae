"""What the model of a run is given, batch by batch, and its loss on that."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from cli.schema import RunConfig
from data import windows
from data.token_files import Prepared
from data.windows import Batch
from diagnostics import non_finite
from model.seeds import seed_for
from training.device import Compute
from training.evaluation import Net, Objective, cross_entropy
from training.parallel.ranks import Ranks
from training.parallel.strategies import View


class Feed:
    """The batches of a run, on each rank its share of them.

    Attributes:
        rows: of a micro-batch, that all ranks have together.
        large: rows that a rank evaluates at once, without gradients.

    Raises:
        ConfigError: the ranks cannot have equal shares of a micro-batch.
    """

    def __init__(self, config: RunConfig, data: Prepared, compute: Compute, ranks: Ranks) -> None:
        self.data, self.compute, self.ranks = data, compute, ranks
        self.train, self.block_size = config.train, config.model.block_size
        self.seed_of = partial(seed_for, config.seed)  # of each stream, step and micro-batch
        self.rows = config.train.batch_size // config.train.grad_accum
        ranks.check_rows(self.rows)
        fits = compute.evaluation_rows(self.block_size, data.tokenizer.vocab_size)
        self.large = min(fits, 8 * self.rows // ranks.count)

    def loss(self, net: Net, batch: Batch, objective: Objective = cross_entropy) -> Tensor:
        """Mean loss, in nats per token, 0-d."""
        x, y = map(self.compute.tensor, batch)
        with self.compute.autocast():
            return objective(net, x, y)

    def micro_batches(self, step: int) -> Iterator[Batch]:
        """The batch of a step, cut: of each micro-batch this rank's share. Its dropout masks are drawn from
        where it comes."""
        ranks, rows, seed = self.ranks, self.train.batch_size, self.seed_of("data", step)
        for micro in range(self.train.grad_accum):
            share = ranks.share(self.rows, start=micro * self.rows)
            torch.manual_seed(self.seed_of("dropout", step, micro * ranks.count + ranks.rank))
            yield windows.training_batch(self.data.train, self.block_size, rows, seed, share)

    def windows(self, rows: int) -> Iterator[Batch]:
        """Of the validation split, what every evaluation is on, so many rows at once."""
        return windows.fixed_windows(self.data.val, self.block_size, self.train.eval_windows, rows)

    def as_in_training(self) -> Iterator[Batch]:
        """Those of the windows that make micro-batches of all rows; there may be too few for one."""
        return (batch for batch in self.windows(self.rows) if len(batch[0]) == self.rows)

    def whole_split(self) -> Iterator[Batch]:
        """All of the validation split."""
        return windows.whole_split(self.data.val, self.block_size, self.large)

    def origin(self, view: View, step: int, evaluation: bool) -> str:
        """Where the numbers of a step whose update was not made, or of its evaluation, first are not finite,
        as ``first in <module>``."""
        view.model.train(not evaluation)
        with view.whole(), torch.set_grad_enabled(not evaluation):
            for batch in self.windows(self.large) if evaluation else self.micro_batches(step):
                loss_here = partial(self.loss, batch=batch)
                if found := non_finite.first_not_finite(view.model, loss_here, self.ranks.first_of):
                    return f"first in {found}"
        return "but no layer by itself shows it"
