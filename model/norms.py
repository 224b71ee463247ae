"""The norms that treat each token alone. Each is a module that maps (…, T, C) to the same shape.

A new norm is a class, here or in any importable module, and a YAML in conf/norm. The class takes one
positional argument, the number of features. It sets its own initial values, and takes statistics in at least
fp32. Where torch has the same norm, the parameters have torch's names, so a checkpoint loads into either. x
is (B, T, C) in the stream and (B, n_head, T, C / n_head) in QK-norm. Norms that also depend on other tokens
are in model/batchnorms.py.
"""

import operator
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.types import Device

from model.standardize import Standardize, StandardizeByConstants, UnitRMS


def at_least_fp32(x: Tensor) -> Tensor:
    """Return x in the precision that statistics are taken in: bf16 and fp16 become fp32, fp64 stays."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


class Affine(nn.Module):
    """The learned part of a norm: y · weight + bias, initialised to 1 and 0; either may be absent."""

    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(
        self,
        shape: int | Sequence[int],
        weight: bool,
        bias: bool,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        ones = nn.Parameter(torch.ones(shape, device=device, dtype=dtype)) if weight else None
        zeros = nn.Parameter(torch.zeros(shape, device=device, dtype=dtype)) if bias else None
        self.register_parameter("weight", ones)
        self.register_parameter("bias", zeros)

    def affine(self, y: Tensor) -> Tensor:
        if self.weight is not None:
            y = y * self.weight
        if self.bias is not None:
            y = y + self.bias
        return y

    def extra_repr(self) -> str:
        options = {key: value for key, value in vars(self).items() if isinstance(value, int | float | tuple)}
        return ", ".join(f"{key}={value}" for key, value in options.items() if key != "training")


class LayerNorm(Affine):
    """y = (x − μ) / √(σ² + ε) · weight + bias, with μ, σ² of each token over its features (Ba et al. 2016).

    A token's output depends on no other token. So the norm is the same function in training and evaluation,
    and for any batch size; the model stays causal; devices need no synchronisation; and there are no running
    buffers.

    σ² is the biased variance, Σ(x−μ)²/C: with it y has mean square 1 (up to ε). Σ(x−μ)²/(C−1) would estimate
    the variance of a population, but here only the C numbers themselves are scaled.

    x is centred before it is squared, because E[x²] − E[x]² cancels (NaN for a row near 100 with spread
    1e-3). x is centred twice, because rounding μ to fp32 leaves an offset of up to |μ|·6e-8. For a large mean
    this is more accurate than F.layer_norm.

    LayerNorm is a drop-in for torch.nn.LayerNorm (docs/library.md): it has the same attributes, state dict
    and values, and the same arguments plus ``detach_statistics``. The output has the input's dtype.

    Args:
        normalized_shape: int or sequence of ints, the trailing dimensions to normalize over.
        eps: added to σ², in units of x².
        elementwise_affine: learn a weight and, if ``bias``, a bias, both of normalized_shape.
        device, dtype: of the parameters.
        detach_statistics: let no gradient flow through μ and σ. The output is the same. Xu et al. 2019 (arXiv
            1911.07013, DetachNorm, without weight and bias) use it to show what this gradient does.

    Raises:
        ValueError: the input has other trailing dimensions, or no real floating-point dtype.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Device = None,
        dtype: torch.dtype | None = None,
        *,
        detach_statistics: bool = False,
    ) -> None:
        if not isinstance(normalized_shape, Sequence):
            normalized_shape = (operator.index(normalized_shape),)
        trailing = tuple(normalized_shape)
        super().__init__(trailing, elementwise_affine, elementwise_affine and bias, device, dtype)
        self.normalized_shape = trailing
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        self.standardize = StandardizeByConstants if detach_statistics else Standardize

    def reset_parameters(self) -> None:
        """Reset weight and bias to their initial values, e.g. after ``to_empty``."""
        if self.weight is not None:
            nn.init.ones_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        dims = tuple(range(-len(self.normalized_shape), 0))
        if x.shape[-len(dims) :] != self.normalized_shape or not x.is_floating_point():
            raise ValueError(f"LayerNorm over {self.normalized_shape} was given {tuple(x.shape)}, {x.dtype}")
        y, _ = self.standardize.apply(at_least_fp32(x), dims, self.eps)
        return self.affine(y).to(x.dtype)

    def torchs(self) -> nn.LayerNorm:
        """Return torch's LayerNorm with the same parameters. For one token, in sampling, it is 7 times
        as fast."""
        torchs = nn.LayerNorm(list(self.normalized_shape), self.eps, elementwise_affine=False)
        torchs.register_parameter("weight", self.weight)
        torchs.register_parameter("bias", self.bias)
        return torchs


class RMSNorm(Affine):
    """y = x / √(E[x²] + ε) · weight, E over a token's features (Zhang & Sennrich 2019, arXiv 1910.07467).

    LayerNorm without centring: it has one statistic, not two, and y changes if all features are shifted. ε is
    inside the root, as in Llama; torch.nn.RMSNorm with the same eps is the same function.

    Args:
        channels: C, the size of the input's last dimension.
        eps: added to the mean square, in units of x². (torch's default depends on the input's dtype.)
        elementwise_affine: learn a weight of shape (C,).
    """

    def __init__(self, channels: int, eps: float = 1e-5, elementwise_affine: bool = True) -> None:
        super().__init__(channels, elementwise_affine, bias=False)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        y, _ = UnitRMS.apply(at_least_fp32(x), self.eps)
        return self.affine(y).to(x.dtype)


class ScaleNorm(nn.Module):
    """y = weight · x / max(‖x‖, ε), with one learned number, initialised to √C (Nguyen & Salazar 2019, arXiv
    1910.05895): RMSNorm with one gain for all features, which puts tokens on a sphere of learned radius.

    Args:
        channels: C, the size of the input's last dimension.
        eps: lower bound on the ‖x‖ that x is divided by, in units of x.
    """

    def __init__(self, channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.tensor(channels**0.5))

    def forward(self, x: Tensor) -> Tensor:
        return (self.weight * F.normalize(at_least_fp32(x), dim=-1, eps=self.eps)).to(x.dtype)


class GroupNorm(Affine):
    """y = (x − μ) / √(σ² + ε) · weight + bias, with μ, σ² of each group of a token's features (Wu & He 2018,
    arXiv 1803.08494): LayerNorm in each of ``num_groups`` equal parts of the features.

    GroupNorm is torch.nn.GroupNorm on (B·T, C). On (B, C, T), as in vision, statistics would also run over
    all positions and LEAK THE FUTURE, even in evaluation.

    Args:
        channels: C, the last dimension of the input.
        num_groups: a divisor of C.
        eps: added to σ², in units of x².
        affine: learn a weight and, if ``bias``, a bias, both of shape (C,).

    Raises:
        ValueError: num_groups does not divide C.
    """

    def __init__(
        self, channels: int, num_groups: int = 4, eps: float = 1e-5, affine: bool = True, bias: bool = True
    ) -> None:
        super().__init__(channels, affine, affine and bias)
        if num_groups < 1 or channels % num_groups:
            raise ValueError(f"num_groups = {num_groups} does not divide the {channels} channels")
        self.num_groups = num_groups
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        groups = at_least_fp32(x).unflatten(-1, (self.num_groups, -1))
        y, _ = Standardize.apply(groups, (-1,), self.eps)
        return self.affine(y.flatten(-2)).to(x.dtype)


# Smallest width -> initial α of DyT. 1: default of the official LLaMA code. 0.5: a table of the paper, at
# second hand. From 4096 on: α before MLP and head in the official recipes (before attention: 0.8, 0.6, 0.2).
ALPHA = {0: 1.0, 2048: 0.5, 4096: 0.2, 5120: 0.15, 8192: 0.05}


def alpha_of(channels: int) -> float:
    return ALPHA[max(width for width in ALPHA if width <= channels)]


class DynamicTanh(Affine):
    """y = tanh(α·x) · weight + bias, with a learned number α (Zhu et al. 2025, arXiv 2503.10622, DyT).

    DyT has no statistics: it maps each number by itself. In plots of the outputs of trained LayerNorms over
    their inputs, the paper found the S-shape of tanh. Only the learned α adapts to the scale of x.

    Args:
        channels: C, the size of the input's last dimension.
        alpha: initial α, in units of 1/x; None: by width, as in ``ALPHA``. (0.5 outside of language models.)
        bias: learn a bias; the official LLaMA recipes have none.
    """

    embedding_scale = True  # model.embedding_scale=auto learns it, from √C on, as language models need

    def __init__(self, channels: int, alpha: float | None = None, bias: bool = True) -> None:
        super().__init__(channels, True, bias)
        self.alpha = nn.Parameter(torch.tensor(alpha_of(channels) if alpha is None else float(alpha)))

    def forward(self, x: Tensor) -> Tensor:
        return self.affine(torch.tanh(self.alpha * at_least_fp32(x))).to(x.dtype)


class DynamicErf(Affine):
    """y = erf(α·x + s) · weight + bias, with learned α and s (Chen et al. 2025, arXiv 2512.10938, Derf).

    DynamicTanh with another curve and a learned shift. The paper initialises α to 0.5. Its patch for language
    models, at GPT-2's width, initialises α to 1 and adds a learned embedding scale that begins at √C. In
    this code, wider models use the α that DyT's paper recommends.

    Args:
        channels: C, the size of the input's last dimension.
        alpha: initial α, in units of 1/x; None: by width, as in ``ALPHA``.
        shift: initial s.
        bias: learn a bias.
    """

    embedding_scale = True  # as in DynamicTanh

    def __init__(
        self, channels: int, alpha: float | None = None, shift: float = 0.0, bias: bool = True
    ) -> None:
        super().__init__(channels, True, bias)
        self.alpha = nn.Parameter(torch.tensor(alpha_of(channels) if alpha is None else float(alpha)))
        self.shift = nn.Parameter(torch.tensor(float(shift)))

    def forward(self, x: Tensor) -> Tensor:
        return self.affine(torch.erf(self.alpha * at_least_fp32(x) + self.shift)).to(x.dtype)
