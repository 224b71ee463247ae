"""Norms and a placement that leak nothing, but in which a naive test reports a leak."""

import random
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.placements import Pre, Residual
from tests.helpers.leaks.honest import Plain, square, unit


class NoisyNorm(Plain):
    """Nothing leaks: noise of torch's generator is added, in evaluation too; same seed, same logits."""

    def forward(self, x: Tensor) -> Tensor:
        return unit(x) * self.weight + 0.1 * torch.randn_like(x)


class NumpyNoise(Plain):
    """Nothing leaks: one random factor a call from numpy's global generator, which torch's seed leaves
    alone."""

    def forward(self, x: Tensor) -> Tensor:
        import numpy as np

        return unit(x) * self.weight * float(np.random.uniform(0.9, 1.1))


class PythonNoise(Plain):
    """Nothing leaks: one random factor a call from Python's generator, which torch's seed leaves alone."""

    def forward(self, x: Tensor) -> Tensor:
        return unit(x) * self.weight * random.uniform(0.9, 1.1)


class OwnGenerator(Plain):
    """Nothing leaks: noise from the norm's own torch.Generator, whose state advances from call to call."""

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.generator = torch.Generator()

    def forward(self, x: Tensor) -> Tensor:
        return unit(x) * self.weight + 0.1 * torch.randn(x.shape[-2:], generator=self.generator).to(x)


class ClockNorm(Plain):
    """Nothing leaks: a factor from the clock, so no two calls agree and no seed helps."""

    def forward(self, x: Tensor) -> Tensor:
        return unit(x) * self.weight * (1 + time.perf_counter_ns() % 1000 / 10_000)


class RejectionNoise(Plain):
    """Debatable, counted as causal: it DRAWS as many numbers as the batch has positive features. With one
    seed, later draws therefore depend on all tokens; over all seeds the distribution of the logits does not,
    so nothing can be learned from it."""

    def forward(self, x: Tensor) -> Tensor:
        torch.rand(int((x > 0).sum()))
        return unit(x) * self.weight + 0.1 * torch.randn_like(x)


class BufferCounter(Plain):
    """Nothing leaks: a buffer counts calls in any mode, and the scale grows with it; the tokens do not
    matter."""

    calls: Tensor

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return unit(x) * self.weight * (1 + 0.01 * self.calls)


class AttributeCounter(Plain):
    """Nothing leaks: a Python attribute counts calls, and every third call has another scale."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return unit(x) * self.weight * (1.5 if self.calls % 3 == 0 else 1)


class LazyTable(Plain):
    """Nothing leaks: a table of positions is made at the first call and made longer when a longer row
    comes."""

    table = torch.ones(0, 1)

    def forward(self, x: Tensor) -> Tensor:
        T = x.shape[-2]
        if len(self.table) < T:
            self.table = 1 + 0.1 * torch.arange(T).cos()[:, None]
        return unit(x) * self.weight * self.table[:T].to(x)


class RowIndexScale(Plain):
    """The scale depends on a row's NUMBER in the batch. No token leaks; rows in another order have other
    logits."""

    def forward(self, x: Tensor) -> Tensor:
        index = torch.arange(len(x), device=x.device, dtype=x.dtype)
        return unit(x) * self.weight * (1 + 0.1 * index).view(-1, *[1] * (x.ndim - 1))


class HugeNorm(Plain):
    """Nothing leaks: outputs of size 1e8, so that any absolute tolerance is too small."""

    def forward(self, x: Tensor) -> Tensor:
        return unit(x) * self.weight * 1e8


class TinyNorm(Plain):
    """Nothing leaks: outputs of size 1e-20; a test must not conclude from tiny differences that a model is
    dead."""

    def forward(self, x: Tensor) -> Tensor:
        return unit(x) * self.weight * 1e-20


class ChaoticNorm(Plain):
    """Nothing leaks: sin(1e5·x) blows up differences of rounding, where B or T brings any."""

    def forward(self, x: Tensor) -> Tensor:
        return (1e5 * unit(x)).sin() * self.weight


class NaNNorm(Plain):
    """Nothing leaks: all outputs are NaN, and NaN ≠ NaN."""

    def forward(self, x: Tensor) -> Tensor:
        return unit(x) * self.weight * torch.nan


class OwnTokenEditor(Plain):
    """Nothing leaks: it enlarges its INPUT in place, by .data, but each token by its own features alone."""

    def forward(self, x: Tensor) -> Tensor:
        y = unit(x) * self.weight
        x.data.mul_(1.1)
        return y


class PaddedFFTNorm(Plain):
    """Causal in exact arithmetic: a zero-padded FFT. Later tokens change the ROUNDING, 1e-7 in fp32, 1e-16 in
    fp64, as with any FFT convolution; no leak that anything could learn from."""

    def forward(self, x: Tensor) -> Tensor:
        T = x.shape[-2]
        kernel = torch.fft.rfft(0.5 ** torch.arange(1, T + 1, dtype=x.dtype, device=x.device), n=2 * T)
        s = torch.fft.irfft(torch.fft.rfft(square(x).mT, n=2 * T) * kernel, n=2 * T)[..., :T].mT
        return unit(x, s.clamp(min=0)) * self.weight


class HeadsNorm(Plain):
    """Nothing leaks: F.normalize without dim as QK-norm, where dimension 1 is the heads of one token."""

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x) * self.weight


class ZeroGated(Plain):
    """Nothing leaks: the mean over rows and time is multiplied by a constant 0 (if the mean is finite)."""

    def forward(self, x: Tensor) -> Tensor:
        return unit(x) * self.weight + 0.0 * x.mean((0, -2), keepdim=True)


class DeadNorm(Plain):
    """Nothing leaks: its output is a constant, so that the logits depend on no token at all."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x) + self.weight


class Dropping(Residual):
    """A residual whose branch is left out, for all rows, in a third of the calls in training."""

    def forward(self, x: Tensor) -> Tensor:
        return x if self.training and torch.rand(()) < 1 / 3 else super().forward(x)


class StochasticDepth(Pre):
    """Nothing leaks: branches are left out by chance in training, which shifts later random draws."""

    def __call__(
        self, branch: nn.Module, norm: Callable[[str], nn.Module], layer: int, site: str
    ) -> Residual:
        return Dropping(branch, norm, self.slots(layer, site))
