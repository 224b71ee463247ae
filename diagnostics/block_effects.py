"""What each block of a model is good for: what leaving it out costs, and how far it turns the stream.

python -m scripts.blocks runs/NAME prints both of a trained model.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


@torch.no_grad()
def stream(model: Any, idx: Tensor) -> list[Tensor]:
    """The residual stream of a model.GPT for tokens ``idx`` (B, T): behind the embedding and behind each
    block, n_layer + 1 tensors (B, T, C). In the mode that the model is in; it moves no random numbers of a
    model in evaluation."""
    found: list[Tensor] = []
    hooks = [
        module.register_forward_hook(lambda _, args, x: found.append(x))
        for module in (model.embed, *model.blocks)
    ]
    try:
        model(idx)
    finally:
        for hook in hooks:
            hook.remove()
    return found


@contextmanager
def without(block: nn.Module) -> Iterator[None]:
    """Inside, the block gives back its input. (It is computed, and what it gives is not used.)"""
    hook = block.register_forward_hook(lambda _, args, output: args[0])
    try:
        yield
    finally:
        hook.remove()


@torch.no_grad()
def skip_costs(model: Any, loss_of: Callable[[Any], Any]) -> Iterator[float]:
    """How much the loss rises when a block is left out, one at a time: n_layer numbers, in nats per token.
    A block that can go costs about 0 (Gromov et al. 2024, arXiv 2403.17887; Sun et al. 2025, arXiv
    2502.05795).

    Args:
        model: a model.GPT.
        loss_of: its loss, on the same tokens each time.
    """
    whole = loss_of(model)
    for block in model.blocks:
        with without(block):
            cost = float(loss_of(model) - whole)
        yield cost


def cosines(x: Tensor, y: Tensor) -> Tensor:
    """x·y / (‖x‖‖y‖) of each token: (B, T, C) twice -> (B, T). In fp64, as 1 minus it is wanted."""
    return torch.cosine_similarity(x.double(), y.double(), dim=-1)


def angular_distances(streams: list[Tensor], n: int = 1) -> list[float]:
    """(1/π) arccos cos(x_ℓ, x_ℓ+n), the mean over tokens: how far n blocks turn the stream, from 0 to 1, for
    ℓ = 0 … n_layer − n (Gromov et al. 2024, arXiv 2403.17887, eq. 7, who take the last token of each row).

    Args:
        streams: as ``stream`` gives them.
        n: how many blocks at once.
    """
    pairs = zip(streams[:-n], streams[n:], strict=True)
    return [(cosines(x, y).clamp(-1, 1).arccos().mean() / torch.pi).item() for x, y in pairs]
