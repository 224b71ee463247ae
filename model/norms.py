"""Every normalization: called with the number of features, gives a module that maps (B, T, C) to (B, T, C).

A new norm is a class here (or anywhere importable) and a YAML in conf/norm. The contract: one positional
argument, the number of features; statistics in at least fp32; its own initial values; parameters named
``weight`` and ``bias``, as torch's, so that a checkpoint moves between ours and torch's.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def at_least_fp32(x: Tensor) -> Tensor:
    """x in the precision its statistics are taken in: bf16 and fp16 are raised to fp32, fp64 stays."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


class LayerNorm(nn.Module):
    """y = (x − μ) / √(σ² + ε) · weight + bias, with μ, σ² of each token over its features (Ba et al. 2016).

    Statistics run over the trailing ``normalized_shape`` dimensions of one token; no other token enters.
    So training and evaluation are one function, any batch size will do, causality is kept, nothing is to be
    synchronised across devices, and there are no running buffers.

    σ² is the biased variance, Σ(x−μ)²/C, not /(C−1): it is the second moment of the very numbers that are
    scaled, so y has mean square 1 (up to ε); nothing is being estimated. x is centred before it is squared,
    because E[x²] − E[x]² cancels (NaN for a row near 100 with spread 1e-3), and centred once more, because in
    fp32 the rounding of μ itself leaves an offset of up to |μ|·6e-8 in x − μ. On rows with a large mean this
    is more accurate than F.layer_norm.

    Args, as torch.nn.LayerNorm's, with which the state dict is interchangeable:
        normalized_shape: int or sequence of ints, the trailing dimensions to normalize over.
        eps: added to σ², in units of x².
        elementwise_affine: learn a weight and, if ``bias``, a bias, both of normalized_shape.

    Raises:
        ValueError: the input's trailing dimensions are not normalized_shape.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
    ) -> None:
        super().__init__()
        trailing = (normalized_shape,) if isinstance(normalized_shape, int) else normalized_shape
        self.normalized_shape = tuple(trailing)
        self.dims = tuple(range(-len(self.normalized_shape), 0))
        self.eps = eps
        weight, shift = elementwise_affine, elementwise_affine and bias
        self.weight = nn.Parameter(torch.ones(self.normalized_shape)) if weight else None
        self.bias = nn.Parameter(torch.zeros(self.normalized_shape)) if shift else None

    def forward(self, x: Tensor) -> Tensor:
        if tuple(x.shape[-len(self.dims) :]) != self.normalized_shape:
            raise ValueError(
                f"LayerNorm over {self.normalized_shape} was given an input of shape {tuple(x.shape)}: "
                "its last dimensions must be the same"
            )
        y = at_least_fp32(x)
        y = y - y.mean(self.dims, keepdim=True)
        y = y - y.detach().mean(self.dims, keepdim=True)  # rounding only, so it has no gradient
        y = y * torch.rsqrt(y.square().mean(self.dims, keepdim=True) + self.eps)
        if self.weight is not None:
            y = y * self.weight
        if self.bias is not None:
            y = y + self.bias
        return y.to(x.dtype)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}"


class BatchNorm(nn.Module):
    """y = (x − μ) / √(σ² + ε) · weight + bias, with μ, σ² of each channel over batch and time (Ioffe &
    Szegedy 2015).

    Statistics run, in training, over all B·T values of a channel in the micro-batch; in evaluation they are
    running estimates. So the result depends on the batch size and on what else is in the batch, small
    batches and rows of varying length are noisy, training and evaluation are different functions joined by
    running buffers, and several devices must share their sums to act as one.
    In a causal model, training-mode statistics LEAK THE FUTURE: position t is scaled by tokens after t and by
    other rows, so the training loss is not that of a language model. Only evaluation mode is causal.

    The biased variance normalizes; the running estimate takes the unbiased one, as torch.nn.BatchNorm1d does
    on (N, C, L). The state dict is interchangeable with torch's.

    Args:
        num_features: channels C, the last dimension of the input.
        eps: added to σ², in units of x².
        momentum: weight of the new batch in the running estimates.
        affine: learn a weight and, if ``bias``, a bias, both of shape (C,).

    Raises:
        ValueError: the input has other channels, or training on one value per channel (σ² would be 0).
    """

    num_batches_tracked: Tensor
    running_mean: Tensor
    running_var: Tensor

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = True,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.weight = nn.Parameter(torch.ones(num_features)) if affine else None
        self.bias = nn.Parameter(torch.zeros(num_features)) if affine and bias else None
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))
        self.register_buffer("num_batches_tracked", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] != self.num_features:
            raise ValueError(f"BatchNorm over {self.num_features} channels was given {tuple(x.shape)}")
        y = at_least_fp32(x)
        mean, var = self.batch_moments(y) if self.training else (self.running_mean, self.running_var)
        y = (y - mean) * torch.rsqrt(var + self.eps)
        if self.weight is not None:
            y = y * self.weight
        if self.bias is not None:
            y = y + self.bias
        return y.to(x.dtype)

    def batch_moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and biased variance of each channel, (C,) each; advances the running estimates.

        Written with sums of values and of centred squares: what several devices would add up to act as one.
        """
        over = tuple(range(x.ndim - 1))
        n = x.numel() // self.num_features
        if n < 2:
            raise ValueError(
                "BatchNorm in training needs more than one value per channel: rows of a micro-batch × time "
                "steps is 1"
            )
        mean = x.sum(over) / n
        var = (x - mean).square().sum(over) / n
        with torch.no_grad():
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
            self.running_var.lerp_((var * n / (n - 1)).to(self.running_var.dtype), self.momentum)
            self.num_batches_tracked.add_(1)
        return mean, var

    def extra_repr(self) -> str:
        return f"{self.num_features}, eps={self.eps}, momentum={self.momentum}"
