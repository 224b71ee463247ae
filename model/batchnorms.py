"""The normalizations whose statistics run over the batch: called with the number of features, as those of
model/norms.py, which has the contract.
"""

import torch
from torch import Tensor

from model.norms import Affine, at_least_fp32


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
        super().__init__(num_features, affine, affine and bias)
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))
        self.register_buffer("num_batches_tracked", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] != self.num_features:
            raise ValueError(f"BatchNorm over {self.num_features} channels was given {tuple(x.shape)}")
        y = at_least_fp32(x)
        mean, var = self.batch_moments(y) if self.training else (self.running_mean, self.running_var)
        return self.affine((y - mean) * torch.rsqrt(var + self.eps)).to(x.dtype)

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
