"""The loss on given batches: as a model is used, and on the batch statistics that it was trained on."""

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.func import functional_call

from data.batches import Batch

Net = Callable[[Tensor], Tensor]  # tokens (B, T) -> logits (B, T, V)
LossOf = Callable[[Net, Batch], Tensor]  # mean loss per target token, 0-d


def evaluate(model: nn.Module, loss_of: LossOf, some: Iterable[Batch]) -> float:
    """Mean loss per target token, in evaluation mode. Moves no buffer and draws no random number."""
    model.eval()
    try:
        return mean_loss(model, loss_of, some)
    finally:
        model.train()


def evaluate_on_batch_statistics(model: nn.Module, loss_of: LossOf, some: Iterable[Batch]) -> float:
    """The same, but modules with running estimates take their statistics from each batch, as in training.
    The estimates stay as they are."""
    model.eval()
    for module in with_running_estimates(model):
        module.train()
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        return mean_loss(lambda idx: functional_call(model, buffers, (idx,)), loss_of, some)
    finally:
        model.train()


def with_running_estimates(model: nn.Module) -> list[nn.Module]:
    """The modules with buffers of real numbers, as BatchNorm's running mean."""
    return [m for m in model.modules() if any(b.is_floating_point() for b in m.buffers(recurse=False))]


def mean_loss(net: Net, loss_of: LossOf, some: Iterable[Batch]) -> float:
    with torch.inference_mode():
        losses, sizes = zip(*((loss_of(net, batch), batch[1].size) for batch in some), strict=True)
        values = torch.stack(losses).tolist()  # one copy to the host
    return math.fsum(v * n for v, n in zip(values, sizes, strict=True)) / sum(sizes)
