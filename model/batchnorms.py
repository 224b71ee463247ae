"""The norms that take statistics over the batch. model/norms.py says what a norm has to provide."""

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from model.norms import Affine, at_least_fp32


def ranks(sync: bool) -> int:
    """Return the number of ranks that share statistics, each with an equal part of the batch."""
    return dist.get_world_size() if sync and dist.is_available() and dist.is_initialized() else 1


def of_each(mine: Tensor, ranks: int) -> Tensor:
    """Return ``mine`` of all ranks, (ranks, …). gloo's all-reduce of a small tensor takes 3 times as long."""
    if ranks == 1:
        return mine[None]
    every = [torch.empty_like(mine) for _ in range(ranks)]
    dist.all_gather(every, mine.contiguous())
    return torch.stack(every)


class StandardizeBatch(torch.autograd.Function):
    """y = (x − μ) · s with s = 1/√(σ² + ε). μ and σ² are taken over the leading dimensions ``over`` of x, on
    all ``ranks`` together. Returns y, μ and σ²; μ and σ² are not differentiable.

    Let g be the gradient with respect to y. The gradient with respect to x is then s · (g − E[g] − y ·
    E[g·y]), where E is the mean over the same numbers as in μ.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, over: tuple[int, ...], eps: float, ranks: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        n = math.prod(x.shape[: len(over)])
        mean = x.sum(over) / n
        y = x - mean
        var = y.square().sum(over) / n
        if ranks > 1:  # each has an equal share of x (Chan, Golub & LeVeque 1983, eq. 2.1)
            means, variances = of_each(torch.stack([mean, var]), ranks).unbind(1)
            own, mean = mean, means.mean(0)
            var = (variances + (means - mean).square()).mean(0)
            y += own - mean
        s = torch.rsqrt(var + eps)
        y *= s
        ctx.save_for_backward(y, s)
        ctx.over, ctx.n, ctx.ranks = over, n * ranks, ranks
        ctx.mark_non_differentiable(mean, var)
        return y, mean, var

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor, *_: Tensor) -> tuple[Tensor, None, None, None]:
        y, s = ctx.saved_tensors
        sums = torch.stack([(g * y).sum(ctx.over), g.sum(ctx.over)])
        dot, total = of_each(sums, ctx.ranks).sum(0)
        gradient = torch.addcmul(total * (-s / ctx.n), g, s)  # two passes over memory instead of four
        gradient.addcmul_(y, dot * (-s / ctx.n))
        return gradient, None, None, None


class BatchNorm(Affine):
    """y = (x − μ) / √(σ² + ε) · weight + bias, μ, σ² of a channel over batch and time (Ioffe & Szegedy 2015).

    In training, BatchNorm takes statistics over all B·T values of a channel in the micro-batch; in evaluation
    it uses running estimates. So the model computes one function in training and another in evaluation. In
    training the function is noisy for small batches, and it LEAKS THE FUTURE: the output at t depends on
    later tokens and on other rows, so the training loss is not that of a language model. In evaluation the
    model is causal (probe/causality.py tests both).

    The norm uses the biased variance and puts the unbiased one into the running estimate, as
    torch.nn.BatchNorm1d does on (N, C, L). Each loads the other's state dict.

    Args:
        channels: C, the last dimension of the input.
        eps: added to σ², in units of x².
        momentum: weight of the new batch in the running estimates.
        affine: learn a weight and, if ``bias``, a bias, both of shape (C,).
        sync: with several ranks, take the statistics of the whole batch, not of each rank's share.

    Raises:
        ValueError: the input has another number of channels or, in training, only one value per channel (σ²
            would be 0).
    """

    num_batches_tracked: Tensor
    running_mean: Tensor
    running_var: Tensor

    def __init__(
        self,
        channels: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = True,
        bias: bool = True,
        sync: bool = True,
    ) -> None:
        super().__init__(channels, affine, affine and bias)
        self.eps = eps
        self.momentum = momentum
        self.sync = sync
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))
        self.register_buffer("num_batches_tracked", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] != self.running_mean.shape[-1]:
            raise ValueError(
                f"BatchNorm over {self.running_mean.shape[-1]} channels was given {tuple(x.shape)}"
            )
        y = at_least_fp32(x)
        y = self.in_training(y) if self.training else self.in_evaluation(y)
        return self.affine(y).to(x.dtype)

    def in_evaluation(self, x: Tensor) -> Tensor:
        """Normalize by the running estimates."""
        mean, var = self.estimates(x)
        return (x - mean) * torch.rsqrt(var + self.eps)

    def in_training(self, x: Tensor) -> Tensor:
        """Normalize by mean and biased variance of the batch, and update the running estimates."""
        over = tuple(range(x.ndim - self.running_mean.ndim))
        n = math.prod(x.shape[: len(over)]) * ranks(self.sync)
        if n < 2:
            raise ValueError(
                f"BatchNorm in training needs more than one value per channel, but was given {tuple(x.shape)}"
            )
        y, mean, var = StandardizeBatch.apply(x, over, self.eps, ranks(self.sync))
        running_mean, running_var = self.estimates(x)
        running_mean.lerp_(mean.to(running_mean.dtype), self.momentum)
        running_var.lerp_((var * n / (n - 1)).to(running_var.dtype), self.momentum)
        self.num_batches_tracked.add_(1)
        return y

    def estimates(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the running mean and variance that apply to x."""
        return self.running_mean, self.running_var


class TorchBatchNorm(nn.BatchNorm1d):
    """torch.nn.BatchNorm1d on (…, C): BatchNorm's function and checkpoint, and the same LEAK in training."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.flatten(0, -2)).view_as(input)


class PositionBatchNorm(BatchNorm):
    """BatchNorm with its own μ, σ² for each channel at each time step, taken over the rows of the batch, as
    for recurrent networks (Cooijmans et al. 2016, arXiv 1603.09025). All time steps share weight and bias.

    No token sees the future, not even in training, but each sees the OTHER ROWS at its time step. A batch
    needs at least two rows, and the statistics of few rows are noisy. For 4 rows of mean 1e4 and std 1 the
    output in fp32 is off by 0.005 (torch's: 0.003). ``weight`` is initialised to 1 (paper: 0.1). ``start`` is
    as in LearnedPositions.

    Args:
        channels, eps, momentum, affine, bias, sync: as in BatchNorm.
        max_steps: the longest input, T; each time step has its own running estimates.

    Raises:
        ValueError: as in BatchNorm; or the input has more than max_steps time steps.
    """

    start = 0

    def __init__(
        self,
        channels: int,
        max_steps: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = True,
        bias: bool = True,
        sync: bool = True,
    ) -> None:
        super().__init__(channels, eps, momentum, affine, bias, sync)
        self.running_mean = torch.zeros(max_steps, channels)
        self.running_var = torch.ones(max_steps, channels)

    def estimates(self, x: Tensor) -> tuple[Tensor, Tensor]:
        end = self.start + x.shape[-2]
        if len(self.running_mean) < end:
            raise ValueError(f"PositionBatchNorm of {len(self.running_mean)} time steps was given {end}")
        return self.running_mean[self.start : end], self.running_var[self.start : end]


class RunningBatchNorm(BatchNorm):
    """BatchNorm with the mean and variance of EARLIER steps: both are updated after use, so nothing leaks.

    No gradient flows through the moments, so nothing keeps weights from growing; Ioffe 2017 (arXiv
    1702.03275) warns that a model can blow up. In one measurement, with a momentum of 0.1, four pre-norm
    blocks of 128 channels, initialised with GPT-2's std of 0.02, did not get below the loss of guessing in
    300 steps. As in torch, the mean begins at 0 and the variance at 1. With the default momentum of 0.01, a
    third of these initial values is left after 100 steps.
    """

    def __init__(
        self, channels: int, eps: float = 1e-5, momentum: float = 0.01, affine: bool = True, bias: bool = True
    ) -> None:
        super().__init__(channels, eps, momentum, affine, bias)

    def in_training(self, x: Tensor) -> Tensor:
        y = self.in_evaluation(x)
        # New tensors: a compiled backward reads the old ones again, even after an update (pytorch #197039).
        self.running_mean, self.running_var = self.running_mean.clone(), self.running_var.clone()
        with torch.no_grad():
            super().in_training(x)
        return y


class PowerNorm(Affine):
    """y = x / √(ψ² + ε) · weight + bias, with ψ² a running mean of each channel's x² over EARLIER steps (Shen
    et al. 2020, arXiv 2003.07845).

    PowerNorm subtracts no mean, because means vary most between batches of text. As in RunningBatchNorm, ψ is
    updated after use, so nothing leaks. Three parts of the paper's method are left out: the approximate
    gradient through ψ, which subtracts a running mean of ŷ·∂L/∂ŷ; GroupScaling of the tokens; and a first
    phase, found in the paper's code, of 4,000 to 10,000 steps that use the batch's own statistics, which
    leak.

    Args:
        channels: C, the last dimension of the input.
        eps: added to ψ², in units of x².
        momentum: weight of a new batch in ψ², the paper's 1 − α; ψ² is initialised to 1.
        affine: learn a weight and, if ``bias``, a bias, both of shape (C,).
    """

    running_square: Tensor

    def __init__(
        self,
        channels: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = True,
        bias: bool = True,
    ) -> None:
        super().__init__(channels, affine, affine and bias)
        self.eps = eps
        self.momentum = momentum
        self.register_buffer("running_square", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        y = at_least_fp32(x)
        scale = torch.rsqrt(self.running_square + self.eps)
        if self.training:  # a new tensor, not an updated one: see RunningBatchNorm
            square = y.detach().square().flatten(0, -2).mean(0)
            square = of_each(square, ranks(sync=True)).mean(0)
            self.running_square = self.running_square.lerp(square.to(scale.dtype), self.momentum)
        return self.affine(y * scale).to(x.dtype)
