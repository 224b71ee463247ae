"""The loss on given batches: as a model is used, and on the batch statistics that it was trained on.

Several ranks share them, a batch to each in turn, so they come as turns: see ``training.parallel.ranks``.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from data.windows import Batch
from training.parallel.ranks import Ranks

Net = Callable[[Tensor], Tensor]  # tokens (B, T) -> logits (B, T, V)
Objective = Callable[[Net, Tensor, Tensor], Tensor]  # a net, tokens, targets (B, T) -> mean loss, 0-d
LossOf = Callable[[Net, Batch], Tensor]  # mean loss per target token, 0-d


def cross_entropy(net: Net, idx: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy of idx's next tokens, the targets, in nats per token."""
    return F.cross_entropy(net(idx).flatten(0, 1).float(), targets.flatten())


def evaluate(model: nn.Module, loss_of: LossOf, turns: Iterable[list[Batch]], ranks: Ranks) -> float:
    """Mean loss per target token, in evaluation mode. Moves no buffer and draws no random number."""
    model.eval()
    try:
        return mean_loss(model, loss_of, turns, ranks)
    finally:
        model.train()


def evaluate_on_batch_statistics(
    model: nn.Module, estimating: Sequence[nn.Module], loss_of: LossOf, some: Iterable[Batch], ranks: Ranks
) -> float:
    """The same, but the modules ``estimating`` normalize as they do in training: each rank does its share of
    every batch. Their running estimates stay as they are, and no batch's are seen by the next."""
    model.eval()
    for module in estimating:
        module.train()

    def net(idx: Tensor) -> Tensor:
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        return functional_call(model, buffers, (idx,))

    def shares() -> Iterator[list[Batch]]:
        for x, y in some:
            part = ranks.share(len(x))
            yield [(x[part], y[part])]

    try:
        here = torch.tensor(mean_loss(net, loss_of, shares(), Ranks()), dtype=torch.float64)
        return float(ranks.mean(here))
    finally:
        model.train()


def with_running_estimates(model: nn.Module, loss_of: Callable[[Net], Tensor]) -> list[nn.Module]:
    """The modules whose buffers a forward in training mode moves, as BatchNorm's, unless they normalize by
    them then, too. It is tried and taken back."""
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with torch.no_grad():
        loss_of(model)
    moved = {name for name, buffer in model.named_buffers() if not torch.equal(buffer, before[name])}
    for name, buffer in model.named_buffers():
        buffer.copy_(before[name])
    owners = {name.rpartition(".")[0] for name in moved}
    modules = [module for name, module in model.named_modules() if name in owners]
    if not modules:
        return []
    state = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model.eval()
    with torch.no_grad():
        by_estimates = loss_of(model)
        for module in modules:
            module.train()
        by_batch = loss_of(lambda idx: functional_call(model, state, (idx,)))
    model.train()
    return [] if torch.equal(by_estimates, by_batch) else modules


def mean_loss(net: Net, loss_of: LossOf, turns: Iterable[list[Batch]], ranks: Ranks) -> float:
    sizes: list[int] = []  # target tokens of each batch
    mine = []
    with torch.inference_mode():
        for turn in turns:
            sizes += [y.size for _, y in turn]
            if ranks.rank < len(turn):
                mine.append(loss_of(net, turn[ranks.rank]))
        losses = torch.zeros(len(sizes))
        if mine:
            losses[ranks.rank :: ranks.count] = torch.stack(mine).cpu()  # one copy to the host
        values = ranks.sum(losses).tolist()
    return math.fsum(v * n for v, n in zip(values, sizes, strict=True)) / sum(sizes)
