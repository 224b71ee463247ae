"""Every normalization: called with the number of features, gives a module that maps (…, T, C) to the same.

A new norm is a class here (or anywhere importable) and a YAML in conf/norm. The contract: one positional
argument, the number of features; statistics in at least fp32; its own initial values; parameters named
``weight`` and ``bias``, as torch's, so that a checkpoint moves between ours and torch's. In the stream x is
(B, T, C), as QK-norm (B, n_head, T, C / n_head). Those that look at other tokens are in model/batchnorms.py.
"""

import operator
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.types import Device

from model.standardize import Standardize, StandardizeByConstants, UnitRMS


def at_least_fp32(x: Tensor) -> Tensor:
    """x in the precision its statistics are taken in: bf16 and fp16 are raised to fp32, fp64 stays."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


class Affine(nn.Module):
    """What norms learn: y · weight + bias, beginning as 1 and 0, as far as these are there."""

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

    Statistics run over the trailing ``normalized_shape`` dimensions of one token; no other token enters.
    So training and evaluation are one function, any batch size will do, causality is kept, nothing is to be
    synchronised across devices, and there are no running buffers.

    σ² is the biased variance, Σ(x−μ)²/C, not /(C−1): it is the second moment of the very numbers that are
    scaled, so y has mean square 1 (up to ε); nothing is being estimated. x is centred before it is squared,
    because E[x²] − E[x]² cancels (NaN for a row near 100 with spread 1e-3), and centred once more, because in
    fp32 the rounding of μ itself leaves an offset of up to |μ|·6e-8 in x − μ. On rows with a large mean this
    is more accurate than F.layer_norm.

    It is a drop-in for torch.nn.LayerNorm (docs/library.md): its arguments, attributes and state dict are
    torch's, and it gives what that gives, in the dtype of its input.

    Args, as torch.nn.LayerNorm's:
        normalized_shape: int or sequence of ints, the trailing dimensions to normalize over.
        eps: added to σ², in units of x².
        elementwise_affine: learn a weight and, if ``bias``, a bias, both of normalized_shape.
        device, dtype: where and as what they are kept.
    And, not torch's:
        detach_statistics: no gradient flows through μ and σ. The output is the same; Xu et al. 2019 (arXiv
            1911.07013, DetachNorm, there without weight and bias) show by it what that gradient is good for.

    Raises:
        ValueError: the input's trailing dimensions are not normalized_shape, or it is not of real numbers in
            floating point.
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
        """As at the start; after ``to_empty``, say."""
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
        """torch's with these very parameters. For one token at a time, in sampling, it is 7 times as fast."""
        torchs = nn.LayerNorm(list(self.normalized_shape), self.eps, elementwise_affine=False)
        torchs.register_parameter("weight", self.weight)
        torchs.register_parameter("bias", self.bias)
        return torchs


class RMSNorm(Affine):
    """y = x / √(E[x²] + ε) · weight, with the mean square of each token over its features (Zhang & Sennrich
    2019, arXiv 1910.07467).

    LayerNorm without its centring: nothing is subtracted, so a constant shift of the features is seen, and
    one statistic is taken instead of two. ε stands inside of the root, as in Llama; torch.nn.RMSNorm with the
    same eps is the same function.

    Args:
        channels: channels C, the last dimension of the input.
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
    """y = weight · x / max(‖x‖, ε), with one learned number that begins as √C (Nguyen & Salazar 2019, arXiv
    1910.05895).

    Each token is put on a sphere with a learned radius. At the start this is RMSNorm, but one gain serves all
    features.

    Args:
        channels: channels C, the last dimension of the input.
        eps: the least ‖x‖, in units of x, that is divided by.
    """

    def __init__(self, channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.tensor(channels**0.5))

    def forward(self, x: Tensor) -> Tensor:
        return (self.weight * F.normalize(at_least_fp32(x), dim=-1, eps=self.eps)).to(x.dtype)


class GroupNorm(Affine):
    """y = (x − μ) / √(σ² + ε) · weight + bias, with μ, σ² of each group of a token's features (Wu & He 2018,
    arXiv 1803.08494).

    LayerNorm in each of ``num_groups`` equal parts of one token's channels. In vision the statistics of a
    group run over all positions, too; torch.nn.GroupNorm on (B, C, T) does so, and in a causal model that
    would LEAK THE FUTURE, in evaluation as well. Here they do not: it is torch's on (B·T, C).

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


# α of DyT at the start, from each width on. Those of 4096, 5120 and 8192 channels are of the official LLaMA
# recipes (their README: 7B, 13B, 34B and 70B, before the MLP and the head; before attention it is larger
# there: 0.8, 0.6, 0.2); 1 is the default of that code, and 0.5 at 2048 is of a table of the paper, at second
# hand.
ALPHA = {0: 1.0, 2048: 0.5, 4096: 0.2, 5120: 0.15, 8192: 0.05}


def alpha_of(channels: int) -> float:
    return ALPHA[max(width for width in ALPHA if width <= channels)]


class DynamicTanh(Affine):
    """y = tanh(α·x) · weight + bias, with a learned number α (Zhu et al. 2025, arXiv 2503.10622, DyT).

    No statistics at all: each number is squashed by itself, as LayerNorm's output is seen to be in trained
    networks. What a norm does for the scale of x is left to α. In language models it needs α by width and a
    learned embedding scale of √C, which ``embedding_scale`` asks for.

    Args:
        channels: channels C, the last dimension of the input.
        alpha: α at the start, in units of 1/x; None: by width, ``ALPHA``. (0.5 outside of language models.)
        bias: learn a bias; the official LLaMA has none.
    """

    embedding_scale = True  # what goes with it in a model

    def __init__(self, channels: int, alpha: float | None = None, bias: bool = True) -> None:
        super().__init__(channels, True, bias)
        self.alpha = nn.Parameter(torch.tensor(alpha_of(channels) if alpha is None else float(alpha)))

    def forward(self, x: Tensor) -> Tensor:
        return self.affine(torch.tanh(self.alpha * at_least_fp32(x))).to(x.dtype)


class DynamicErf(Affine):
    """y = erf(α·x + s) · weight + bias, with learned numbers α and s (Chen et al. 2025, arXiv 2512.10938,
    Derf).

    As DynamicTanh, with another curve and a learned shift. The paper begins with α = 0.5; its patch for
    language models with 1 at GPT-2's width, and with a learned embedding scale of √C, as here. For wider
    models it has no numbers: α by width is DynamicTanh's.

    Args:
        channels: channels C, the last dimension of the input.
        alpha: α at the start, in units of 1/x; None: by width, ``ALPHA``.
        shift: s at the start.
        bias: learn a bias.
    """

    embedding_scale = True  # what goes with it in a model

    def __init__(
        self, channels: int, alpha: float | None = None, shift: float = 0.0, bias: bool = True
    ) -> None:
        super().__init__(channels, True, bias)
        self.alpha = nn.Parameter(torch.tensor(alpha_of(channels) if alpha is None else float(alpha)))
        self.shift = nn.Parameter(torch.tensor(float(shift)))

    def forward(self, x: Tensor) -> Tensor:
        return self.affine(torch.erf(self.alpha * at_least_fp32(x) + self.shift)).to(x.dtype)
