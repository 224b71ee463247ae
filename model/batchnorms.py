"""The normalizations whose statistics run over the batch: called with the number of features, as those of
model/norms.py, which has the contract.
"""

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from model.norms import Affine, at_least_fp32


def ranks(sync: bool) -> int:
    """How many processes, each of which has an equal share of the batch, take their statistics together."""
    return dist.get_world_size() if sync and dist.is_available() and dist.is_initialized() else 1


def of_each(mine: Tensor, ranks: int) -> Tensor:
    """That of every process, (ranks, …). It is what a small tensor is exchanged by in the least time: gloo's
    all-reduce takes three times as long."""
    if ranks == 1:
        return mine[None]
    every = [torch.empty_like(mine) for _ in range(ranks)]
    dist.all_gather(every, mine.contiguous())
    return torch.stack(every)


class StandardizeBatch(torch.autograd.Function):
    """y = (x − μ) · s, where s = 1/√(σ² + ε), and μ, σ² are those over the first dimensions, ``over``, of x,
    and over the shares of it that so many ``ranks`` have. Gives y, μ and σ²; of the last two no gradient is
    taken.

    Its gradient, g being that of y:  s · (g − E[g] − y · E[g·y]), the same mean E as in μ. By hand for the
    same reason as model.standardize.Standardize.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, over: tuple[int, ...], eps: float, ranks: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        n = math.prod(x.shape[: len(over)])
        mean = x.sum(over) / n
        y = x - mean
        var = y.square().sum(over) / n
        if ranks > 1:  # which have equal parts of x (Chan, Golub & LeVeque 1983, eq. 2.1)
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
        gradient = torch.addcmul(total * (-s / ctx.n), g, s)  # in two passes over memory, not four
        gradient.addcmul_(y, dot * (-s / ctx.n))
        return gradient, None, None, None


class BatchNorm(Affine):
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
        channels: C, the last dimension of the input.
        eps: added to σ², in units of x².
        momentum: weight of the new batch in the running estimates.
        affine: learn a weight and, if ``bias``, a bias, both of shape (C,).
        sync: where several processes train together, take the statistics of all their shares of the batch,
            as one process would; else each takes those of its own.

    Raises:
        ValueError: the input has other channels, or training on one value per channel (σ² would be 0).
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
        """By the running estimates."""
        mean, var = self.estimates(x)
        return (x - mean) * torch.rsqrt(var + self.eps)

    def in_training(self, x: Tensor) -> Tensor:
        """By mean and biased variance of the batch. Advances the estimates."""
        over = tuple(range(x.ndim - self.running_mean.ndim))
        n = math.prod(x.shape[: len(over)]) * ranks(self.sync)
        if n < 2:
            raise ValueError(
                f"BatchNorm in training needs more than one value to take a mean of: {tuple(x.shape)}"
            )
        y, mean, var = StandardizeBatch.apply(x, over, self.eps, ranks(self.sync))
        running_mean, running_var = self.estimates(x)
        running_mean.lerp_(mean.to(running_mean.dtype), self.momentum)
        running_var.lerp_((var * n / (n - 1)).to(running_var.dtype), self.momentum)
        self.num_batches_tracked.add_(1)
        return y

    def estimates(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The running estimates that are for x."""
        return self.running_mean, self.running_var


class TorchBatchNorm(nn.BatchNorm1d):
    """torch.nn.BatchNorm1d on (…, C): its rows and time steps are torch's N. The same function and the same
    checkpoint as BatchNorm's, and the same LEAK in training."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.flatten(0, -2)).view_as(input)


class PositionBatchNorm(BatchNorm):
    """BatchNorm with μ, σ² of each channel at each time step, over the rows of the batch alone: the form for
    recurrent networks (Cooijmans et al. 2016, arXiv 1603.09025), weight and bias shared over time.

    No token sees the future, in training neither. But it sees the OTHER ROWS at its time step, and it needs
    two of them at least; few rows make noisy statistics. The running estimates are of max_steps time steps;
    longer inputs are refused. ``start`` is as in model.embeddings.LearnedPositions. (The paper uses the last
    step's for them, and begins with a weight of 0.1 because of the tanh of its LSTM, which is not here.)

    Args:
        channels, eps, momentum, affine, bias, sync: as BatchNorm's.
        max_steps: the longest input, T.

    Raises:
        ValueError: as BatchNorm's; or more time steps than max_steps.
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
    """BatchNorm that normalizes by the moments of EARLIER steps, in training as in evaluation: they are
    updated after they were used. So nothing of the present batch is seen, and there is no leak.

    As the moments are constants, no gradient flows through them, and nothing keeps the weights from growing.
    Of this Ioffe & Szegedy 2015 and Ioffe 2017 (arXiv 1702.03275, whose Batch Renormalization is the cure)
    say that it can make a model blow up. It is here because it is the plainest causal form. Moments that move
    slowly are more nearly constants, hence the small momentum: with BatchNorm's 0.1 a default model in pre
    stayed at the loss of guessing for 300 steps, with 0.01 it learned, if more slowly than with other norms;
    a single batch is not yet learned by heart when with others it is.
    """

    def __init__(
        self, channels: int, eps: float = 1e-5, momentum: float = 0.01, affine: bool = True, bias: bool = True
    ) -> None:
        super().__init__(channels, eps, momentum, affine, bias)

    def in_training(self, x: Tensor) -> Tensor:
        y = self.in_evaluation(x)
        # New tensors, not changed ones: a compiled backward reads the earlier ones again, and would silently
        # find the later in their place (pytorch #197039).
        self.running_mean, self.running_var = self.running_mean.clone(), self.running_var.clone()
        with torch.no_grad():
            super().in_training(x)
        return y


class PowerNorm(Affine):
    """y = x / √(ψ² + ε) · weight + bias, with ψ² a running mean of each channel's x² over EARLIER steps (Shen
    et al. 2020, arXiv 2003.07845).

    No mean is subtracted, as in language its batch statistics vary most. As in RunningBatchNorm, ψ is updated
    after it was used, and is one and the same in training and evaluation: no leak. What is left out of the
    paper and its code: the approximate gradient through ψ (there, a running mean of ŷ·∂L/∂ŷ is subtracted;
    here the gradient through ψ is left out), the first 4,000 to 10,000 steps on the statistics of the
    batch itself, which leak, and a GroupScaling of each token before it. As RunningBatchNorm, it learns more
    slowly than other norms do.

    Args:
        channels: C, the last dimension of the input.
        eps: added to ψ², in units of x².
        momentum: weight of a new batch in ψ², which begins as 1: the paper's 1 − α.
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
        if self.training:  # a new tensor, not a changed one: see RunningBatchNorm
            square = y.detach().square().flatten(0, -2).mean(0)
            square = of_each(square, ranks(sync=True)).mean(0)
            self.running_square = self.running_square.lerp(square.to(scale.dtype), self.momentum)
        return self.affine(y * scale).to(x.dtype)
