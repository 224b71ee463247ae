"""Measure the norms of gradients, weights and updates in a training step.

weights = Weights(model, metric_names.selection(["grad.norm", "update.ratio"], sites=["*"]))
values = weights.before()  # after backward
optimizer.step()
values |= weights.after()
values["update.ratio/00"]  # a 0-d tensor on the model's device
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn


def norm(tensors: Sequence[Tensor]) -> Tensor:
    """Return √Σ x² over all numbers of all tensors, in fp32."""
    return torch.stack([torch.linalg.vector_norm(t, dtype=torch.float32) for t in tensors]).norm()


class Weights:
    """Measure the norms that ``wanted`` selects, for the update between ``before`` and ``after``.

    Only the matrices of ``embed`` and of each block ``LL`` count: gains and biases are vectors, and which of
    these exist depends on the norm."""

    def __init__(self, model: Any, wanted: Callable[[str], bool]) -> None:
        parts: dict[str, nn.Module] = {"embed": model.embed}
        parts |= {f"{i:02d}": block for i, block in enumerate(model.blocks)}
        self.matrices = {site: [p for p in part.parameters() if p.dim() >= 2] for site, part in parts.items()}
        self.wanted = wanted
        self.copies: dict[str, list[Tensor]] = {}

    @torch.no_grad()
    def before(self) -> dict[str, Tensor]:
        """Return grad.norm and weight.norm; call it when the gradients are complete and not yet clipped."""
        values = {}
        for site, matrices in self.matrices.items():
            if self.wanted(name := f"grad.norm/{site}"):
                values[name] = norm([p.grad for p in matrices if p.grad is not None])
            if self.wanted(name := f"weight.norm/{site}"):
                values[name] = norm(matrices)
            if self.wanted(f"update.ratio/{site}"):
                self.copies[site] = [p.clone() for p in matrices]
        return values

    @torch.no_grad()
    def after(self) -> dict[str, Tensor]:
        """Return update.ratio; call it after the optimizer's step."""
        values = {}
        for site, copies in self.copies.items():
            changes = [p - copy for p, copy in zip(self.matrices[site], copies, strict=True)]
            values[f"update.ratio/{site}"] = norm(changes) / norm(copies)
        self.copies.clear()
        return values
