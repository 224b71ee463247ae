"""The model on which diagnostics/norm_checks.py checks a norm, and functions that compute its loss, train it
for a few steps and evaluate it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model import GPT


@dataclass(frozen=True)
class Subject:
    """The model and norms that are checked, and the tokens for it.

    Attributes:
        new_model: returns the model with its initial weights, on the CPU, always the same.
        norms: returns the norms of such a model, by name.
        vocab_size: number of tokens V.
        tokens: two batches of random tokens, each (B, T), int64.
    """

    new_model: Callable[[], GPT]
    norms: Callable[[GPT], Mapping[str, nn.Module]]
    vocab_size: int
    tokens: tuple[Tensor, Tensor]

    def loss(self, model: nn.Module, seed: int = 0) -> Tensor:
        """Return the mean cross-entropy, 0-d, under the random numbers of ``seed``."""
        torch.manual_seed(seed)
        idx, targets = self.tokens
        logits = model(idx).flatten(0, 1)
        return F.cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), targets.flatten())


def slope(s: Subject, direction: Mapping[str, Tensor], step: float = 1e-5) -> float:
    """Return the loss's central difference along ``direction``, by parameter name, in fp64."""
    losses = []
    for sign in (1, -1):
        model = s.new_model().double()
        with torch.no_grad():
            for name, part in direction.items():
                model.get_parameter(name).add_(part, alpha=sign * step)
            losses.append(s.loss(model).item())
    return (losses[0] - losses[1]) / (2 * step)


def train(s: Subject, model: nn.Module, steps: int = 2) -> Tensor:
    """Train by gradient descent on one batch. Return the loss of each step, (steps,)."""
    model.train()
    losses = []
    for _ in range(steps):
        model.zero_grad()
        losses.append(s.loss(model))
        losses[-1].backward()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=0.1)
    return torch.stack(losses).detach()


@torch.no_grad()
def evaluate(s: Subject, model: nn.Module) -> Tensor:
    """Return the loss in evaluation, (1,)."""
    return s.loss(model.eval())[None]
