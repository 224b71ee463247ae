"""Leaks of attention, MLP, embedding and placement. Invented without knowledge of the test."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.attention import Attend
from model.embeddings import Embedding
from model.mlp import MLP
from model.placements import Pre, Residual
from tests.helpers.leaks.honest import Plain


class KeyTimeNorm(Plain):
    """QK-norm with F.normalize(dim=-2), over time instead of features: from later queries and keys,
    always."""

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = 8 * F.normalize(x, dim=-2)
        return y * self.weight


def scores(q: Tensor, k: Tensor) -> Tensor:
    """Return q kᵀ / √hs, not masked."""
    product: Tensor = q @ k.mT * q.shape[-1] ** -0.5
    return product


def later(q: Tensor) -> Tensor:
    """Return a mask (T, T), True where the key is later than the query."""
    return torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool, device=q.device).triu(1)


class PrefixAttend(Attend):
    """A prefix-LM's mask, by which the first 8 tokens see each other: from tokens 1 … 7 to earlier ones."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask = later(q)
        mask[:8, :8] = False
        return scores(q, k).masked_fill(mask, -torch.inf).softmax(-1) @ v


class QuerySoftmax(Attend):
    """The softmax runs over queries (dim=-2) under a right mask: from later queries, by the denominator."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return scores(q, k).masked_fill(later(q), -torch.inf).softmax(-2) @ v


class TopKBeforeMask(Attend):
    """Keeps the 8 highest scores of all keys and masks afterwards: from later keys that take a place
    of the 8."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        s = scores(q, k)
        low = s < s.topk(min(8, s.shape[-1]), -1).values[..., -1:]
        itself = torch.eye(s.shape[-1], dtype=torch.bool, device=s.device)
        return s.masked_fill(later(q) | (low & ~itself), -torch.inf).softmax(-1) @ v


class MaxBeforeMask(Attend):
    """Subtracts the maximum over ALL keys before the mask: from later keys, by rounding or underflow."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        s = scores(q, k)
        weights = (s - s.amax(-1, keepdim=True)).exp().masked_fill(later(q), 0)
        return weights @ v / (weights.sum(-1, keepdim=True) + 1e-30)


class MixtureOfDepths(MLP):
    """Only the half of a row's tokens with the highest score are computed: from later, higher tokens,
    always."""

    def forward(self, x: Tensor) -> Tensor:
        chosen = x[..., 0].topk(max(1, x.shape[-2] // 2), -1).indices
        return super().forward(x) * torch.zeros_like(x[..., 0]).scatter(-1, chosen, 1)[..., None]


class CapacityMLP(MLP):
    """An expert takes tokens of the flat batch until full: from EARLIER rows to later ones, if it is full."""

    def forward(self, x: Tensor) -> Tensor:
        routed = x[..., 0] > 0
        place = routed.flatten().cumsum(0).view_as(routed)
        return super().forward(x) * (routed & (place <= routed.numel() // 4))[..., None]


class MaxNormEmbedding(Embedding):
    """max_norm shrinks used rows of the tied table in place: from a token anywhere to its OWN logit
    everywhere."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.tokens.max_norm = 0.05


class SqueezeExcite(nn.Module):
    """A gate by channel from the row's mean (Hu et al. 2018): from every later token, always."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 * x.mean(-2, keepdim=True).mul(20).sigmoid()


class SqueezeExcitePlacement(Pre):
    """Pre, with squeeze-and-excitation behind each branch: from every later token, always."""

    def __call__(
        self, branch: nn.Module, norm: Callable[[str], nn.Module], layer: int, site: str
    ) -> Residual:
        residual = super().__call__(branch, norm, layer, site)
        residual.out = SqueezeExcite()
        return residual


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


class Exiting(Residual):
    """In evaluation, leave the batch unchanged if the branch would change it by less than ``least``."""

    least = 0.113  # about what an MLP changes at the start, n_embd 16

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return x if not self.training and (y - x).norm() < self.least * x.norm() else y


class EarlyExit(Pre):
    """A branch is skipped if it changes the BATCH little: from any token, in evaluation, at the threshold."""

    def __call__(
        self, branch: nn.Module, norm: Callable[[str], nn.Module], layer: int, site: str
    ) -> Residual:
        return Exiting(branch, norm, self.slots(layer, site))
