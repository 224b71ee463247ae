"""Measure how much each block of a model matters: the loss without the block, and the angle by which the
block turns the residual stream.

python -m scripts.blocks runs/NAME prints both for a trained model.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from probe.hooks import forward_hooks


@torch.no_grad()
def stream(model: Any, idx: Tensor) -> list[Tensor]:
    """Return the residual stream of a model.GPT for tokens ``idx`` (B, T): after the embedding and after each
    block, n_layer + 1 tensors (B, T, C). The model's mode is kept; in evaluation mode no random number is
    drawn."""
    outputs: list[Tensor] = []
    modules = (model.embed, *model.blocks)
    with forward_hooks((module, lambda _, args, x: outputs.append(x)) for module in modules):
        model(idx)
    return outputs


@torch.no_grad()
def skip_costs(model: Any, loss_of: Callable[[Any], Any]) -> Iterator[float]:
    """Yield, for each block, the loss without the block minus the loss with all blocks, in nats per token. A
    block that can be removed costs about 0 (Gromov et al. 2024, arXiv 2403.17887; Sun et al. 2025, arXiv
    2502.05795).

    Args:
        model: a model.GPT.
        loss_of: computes the loss of a model; it must use the same tokens at each call.
    """
    full_loss = loss_of(model)
    for block in model.blocks:
        with forward_hooks([(block, lambda _, args, output: args[0])]):  # replaces the output with the input
            cost = float(loss_of(model) - full_loss)
        yield cost


def cosines(x: Tensor, y: Tensor) -> Tensor:
    """Return the cosine x·y / (‖x‖‖y‖) of each token, (B, T), for x and y (B, T, C). It is computed in fp64,
    because callers take its difference from 1."""
    return torch.cosine_similarity(x.double(), y.double(), dim=-1)


def angular_distances(streams: list[Tensor]) -> list[float]:
    """Return, for each block, arccos(cosine similarity)/π between the stream before and after it, from 0 to
    1, averaged over all tokens. (Gromov et al. 2024, arXiv 2403.17887, eq. 7, use only the last token.)
    ``streams`` is the result of ``stream``."""
    pairs = pairwise(streams)
    return [(cosines(x, y).clamp(-1, 1).arccos().mean() / torch.pi).item() for x, y in pairs]
