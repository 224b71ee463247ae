"""Leaks of attention, MLP, embedding and placement. Invented without knowledge of the test."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.attention import Attend
from model.mlp import MLP
from model.placements import Pre, Residual


class PrefixAttend(Attend):
    """A prefix-LM's mask, by which the first 8 tokens see each other: from tokens 1 … 7 to earlier ones."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        later = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool, device=q.device).triu(1)
        later[:8, :8] = False
        scores = q @ k.mT * q.shape[-1] ** -0.5
        return scores.masked_fill(later, -torch.inf).softmax(-1) @ v


class CapacityMLP(MLP):
    """An expert takes tokens of the flat batch until full: from EARLIER rows to later ones, if it is full."""

    def forward(self, x: Tensor) -> Tensor:
        routed = x[..., 0] > 0
        place = routed.flatten().cumsum(0).view_as(routed)
        return super().forward(x) * (routed & (place <= routed.numel() // 4))[..., None]


class Pooled(nn.Module):
    """The branch at half the time resolution: from token 2i+1 to token 2i."""

    def __init__(self, branch: nn.Module) -> None:
        super().__init__()
        self.branch = branch

    def forward(self, x: Tensor) -> Tensor:
        pairs = F.avg_pool1d(x.mT, 2, ceil_mode=True).mT
        y: Tensor = self.branch(pairs)
        return y.repeat_interleave(2, -2)[..., : x.shape[-2], :]


class DeepHourglass(Pre):
    """An hourglass without its shift, from block 3 on: from token 2i+1 to 2i, only in models of ≥ 4
    blocks."""

    def __call__(
        self, branch: nn.Module, norm: Callable[[str], nn.Module], layer: int, site: str
    ) -> Residual:
        hourglass = layer >= 3 and site == "mlp"
        return super().__call__(Pooled(branch) if hourglass else branch, norm, layer, site)


class Talking(Residual):
    """A residual that writes its row's mean into ``shared``, or else adds the mean found there."""

    shared: list[Tensor]
    writes: bool

    def forward(self, x: Tensor) -> Tensor:
        if self.writes:
            self.shared[:] = [0.2 * x.detach().mean(-2, keepdim=True)]
            return super().forward(x)
        return super().forward(x) + self.shared.pop()


class SideChannel(Pre):
    """Attention's wrapper leaves the row's mean in a list, the MLP's adds it: from every later token,
    always."""

    def __init__(self, n_layer: int) -> None:
        super().__init__(n_layer)
        self.shared: list[Tensor] = []

    def __call__(
        self, branch: nn.Module, norm: Callable[[str], nn.Module], layer: int, site: str
    ) -> Residual:
        residual = Talking(branch, norm, self.slots(layer, site))
        residual.shared, residual.writes = self.shared, site == "attn"
        return residual
