"""Evaluation: the loss on given batches, as the model is used, and on the batch statistics it trained on.

Several ranks share the batches: in every round, each rank takes one.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call

from data.windows import Batch
from system.signals import Pending
from training.batches import Batches
from training.dry_run import copied_buffers
from training.log import RunLog
from training.loss import Loss, Net
from training.parallel.ranks import Ranks, broadcast_buffers
from training.parallel.strategies import Strategy

LossOf = Callable[[Net, Batch], Tensor]  # mean loss per target token, 0-d


class Evaluator:
    """``evaluate(step)``: the validation losses that are due at a step, by metric.

    Args:
        estimating: modules that normalize by running estimates in evaluation and by the batch in training.
        stop: a signal that came is acted upon between two batches.
        log: its last step is the one at which the whole validation split is evaluated, too.
    """

    def __init__(
        self,
        strategy: Strategy,
        batches: Batches,
        loss: Loss,
        ranks: Ranks,
        estimating: Sequence[nn.Module],
        stop: Pending,
        log: RunLog,
    ) -> None:
        self.strategy, self.batches, self.ranks, self.estimating = strategy, batches, ranks, estimating
        self.stop, self.log, self.loss_of = stop, log, loss.of_batch

    def __call__(self, step: int) -> dict[str, float]:
        broadcast_buffers(self.ranks, self.strategy.trained)
        with self.log.clock.aside("evaluation"), self.strategy.full_model():
            row = {"val/loss": self.mean_loss(self.batches.fixed_windows())}
            if self.estimating:
                micro_windows = self.stop.watching(self.batches.micro_windows())
                by_batch = evaluate_on_batch_statistics(
                    self.strategy.model, self.estimating, self.loss_of, micro_windows, self.ranks
                )
                row |= {"val/batch_stats_loss": by_batch, "val/batch_stats_gap": by_batch - row["val/loss"]}
            if step == self.log.steps:
                shown = self.log.progress.through(step, self.batches.whole_split(), self.batches.val_targets)
                row["val/full_loss"] = self.mean_loss(shown)
        return row

    def mean_loss(self, windows: Iterable[Batch]) -> float:
        rounds = self.stop.watching(self.ranks.rounds(windows))
        return evaluate(self.strategy.model, self.loss_of, rounds, self.ranks)


def evaluate(model: nn.Module, loss_of: LossOf, rounds: Iterable[list[Batch]], ranks: Ranks) -> float:
    """Return the mean loss per target token in evaluation mode. Moves no buffer, draws no random number."""
    model.eval()
    try:
        return mean_loss(model, loss_of, rounds, ranks)
    finally:
        model.train()


def evaluate_on_batch_statistics(
    model: nn.Module, estimating: Sequence[nn.Module], loss_of: LossOf, batches: Iterable[Batch], ranks: Ranks
) -> float:
    """Return the mean loss per target token, like ``evaluate``, but let the modules ``estimating`` normalize
    by the statistics of their batch, as in training. Running estimates do not change, and a batch's update of
    them is invisible to the next. Each rank takes its share of every batch."""
    model.eval()
    for module in estimating:
        module.train()

    def net(idx: Tensor) -> Tensor:
        return functional_call(model, copied_buffers(model), (idx,))

    def shares() -> Iterator[list[Batch]]:
        for x, y in batches:
            share = ranks.share(len(x))
            yield [(x[share], y[share])]

    try:
        # each rank averages its own shares, as if it were alone; then the ranks' means are averaged
        local = torch.tensor(mean_loss(net, loss_of, shares(), Ranks()), dtype=torch.float64)
        return float(ranks.mean(local))
    finally:
        model.train()


def with_running_estimates(model: nn.Module, loss_of: Callable[[Net], Tensor]) -> list[nn.Module]:
    """Return the modules whose buffers a forward in training mode moves, as BatchNorm's, unless they also
    normalize by these buffers in training. The forwards that try it move copies."""

    def loss_with(buffers: dict[str, Tensor]) -> Tensor:
        return loss_of(lambda idx: functional_call(model, buffers, (idx,)))

    with torch.no_grad():
        loss_with(moved := copied_buffers(model))
        names = [name for name, buffer in model.named_buffers() if not torch.equal(buffer, moved[name])]
        owners = {name.rpartition(".")[0] for name in names}
        modules = [module for name, module in model.named_modules() if name in owners]
        if not modules:
            return []
        model.eval()
        by_estimates = loss_of(model)
        for module in modules:
            module.train()
        by_batch = loss_with(copied_buffers(model))
        model.train()
    return [] if torch.equal(by_estimates, by_batch) else modules


def mean_loss(net: Net, loss_of: LossOf, rounds: Iterable[list[Batch]], ranks: Ranks) -> float:
    """Return the mean loss per target token over all rounds; each rank computes its batch of every round."""
    sizes: list[int] = []  # target tokens of each batch
    local = []
    with torch.inference_mode():
        for batches in rounds:
            sizes += [y.size for _, y in batches]
            if ranks.rank < len(batches):
                local.append(loss_of(net, batches[ranks.rank]))
        losses = torch.zeros(len(sizes))
        if local:
            losses[ranks.rank :: ranks.count] = torch.stack(local).cpu()  # one copy to the host
        values = ranks.sum(losses).tolist()
    return math.fsum(v * n for v, n in zip(values, sizes, strict=True)) / sum(sizes)
