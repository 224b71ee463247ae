"""Odd norms that leak nothing, invented after the test was finished, without knowledge of it."""

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.helpers.leaks.honest import Plain, unit


class CumulativeMoments(Plain):
    """Subtracts the mean and divides by the deviation of all tokens of the row so far, the current one
    included. Causal: statistics over time, but only over the past."""

    def forward(self, x: Tensor) -> Tensor:
        count = torch.arange(1, x.shape[1] + 1, device=x.device)[:, None]
        mean = x.mean(-1, keepdim=True).cumsum(1) / count
        power = x.pow(2).mean(-1, keepdim=True).cumsum(1) / count
        var = (power - mean.pow(2)).clamp(min=0)
        return ((x - mean) * torch.rsqrt(var + 1e-3) * self.weight).to(x.dtype)


class PaddedFftFilter(nn.Module):
    """A causal 8-tap filter over time by FFT with full zero padding, in fp64. Causal up to fp64 rounding: the
    gradient to later tokens is not exactly 0 but around 1e-16."""

    def __init__(self, n_features: int) -> None:
        super().__init__()
        self.taps = nn.Parameter(0.6 ** torch.arange(8.0)[:, None].repeat(1, n_features))

    def forward(self, x: Tensor) -> Tensor:
        steps, size = x.shape[1], x.shape[1] + 8
        taps = torch.fft.rfft(self.taps.double(), size, dim=0)
        spectrum = torch.fft.rfft(unit(x).double(), size, dim=1) * taps
        return torch.fft.irfft(spectrum, size, dim=1)[:, :steps].to(x.dtype)


class SteepPositionGain(Plain):
    """The gain goes by the absolute position alone, in a saw of 7 steps from 0.001 up to 1000. Large gains
    and large differences between neighbours, but no token sees another."""

    def forward(self, x: Tensor) -> Tensor:
        gain = 10.0 ** (torch.arange(x.shape[1], device=x.device) % 7 - 3)
        return (unit(x) * gain[:, None] * self.weight).to(x.dtype)


class CoarseQuantiser(Plain):
    """Rounds each token to 15 levels of its own largest value, straight-through in the backward pass. It
    jumps at tiny changes of a token, but only that token's own output does."""

    def forward(self, x: Tensor) -> Tensor:
        y = x / x.abs().amax(-1, keepdim=True).clamp(min=1e-4)
        y = y + (torch.round(y * 7) / 7 - y).detach()
        return (y * self.weight).to(x.dtype)


class LoggedStatistics(nn.Module):
    """Counts its calls and keeps a running power of whole batches in buffers, in train() and eval(), for
    logging only. The output never reads them."""

    def __init__(self, n_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n_features))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("power", torch.ones(n_features))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.power.lerp_(x.detach().pow(2).mean((0, 1)).to(self.power.dtype), 0.1)
        return (unit(x) * self.weight).to(x.dtype)


class TrainingNoise(Plain):
    """Multiplies each value by its own noise and drops some whole tokens. Random in train(), so not
    repeatable and not the same after cutting the sequence; the noise knows nothing of the data. Exact in
    eval()."""

    def forward(self, x: Tensor) -> Tensor:
        y = unit(x) * self.weight
        if self.training:
            kept = torch.rand(x.shape[:2], device=x.device) > 0.1
            y = y * (1 + 0.2 * torch.randn_like(x)) * kept[..., None]
        return y.to(x.dtype)


class CheckpointedTwice(nn.Module):
    """One shared scale and shift applied twice with a token's own norm between, under gradient checkpointing,
    so forward runs again in the backward pass. Each token by itself."""

    def __init__(self, n_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n_features))
        self.bias = nn.Parameter(torch.full((n_features,), 0.1))

    def _once(self, x: Tensor) -> Tensor:
        return (unit(x) * self.weight + self.bias).to(x.dtype)

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(lambda v: self._once(self._once(v)), x, use_reentrant=False)


class _HandRms(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        ctx.save_for_backward(x, scale)
        return x * scale

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        x, scale = ctx.saved_tensors
        return scale * (grad - x * scale.pow(2) * (grad * x).mean(-1, keepdim=True))


class HandWrittenBackward(Plain):
    """An RMS norm of each token with a backward pass written by hand, and written right. No token sees
    another, in neither direction."""

    def forward(self, x: Tensor) -> Tensor:
        return (_HandRms.apply(x) * self.weight).to(x.dtype)


class SortedTopFeatures(Plain):
    """Keeps the larger half of each token's own features and sorts them in falling order; the rest is exactly
    0. Hard thresholds and sorting, but over features, never over time."""

    def forward(self, x: Tensor) -> Tensor:
        y = unit(x).sort(-1, descending=True).values
        middle = y.median(-1, keepdim=True).values
        return (torch.where(y > middle, y, 0.0) * self.weight).to(x.dtype)


class ZeroAtStart(nn.Module):
    """An RMS norm of each token whose weight starts at exactly 0, so at first the output and the gradient to
    the input are exactly 0. Nothing leaks, before or after training."""

    def __init__(self, n_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(n_features))

    def forward(self, x: Tensor) -> Tensor:
        return (unit(x) * self.weight).to(x.dtype)


class CausalEmaLoop(nn.Module):
    """Divides each token by a moving average of the power of its row, carried from left to right in a loop
    with a trainable decay, and started at 1 on every call. Causal."""

    def __init__(self, n_features: int) -> None:
        super().__init__()
        self.decay = nn.Parameter(torch.full((n_features,), 2.0))

    def forward(self, x: Tensor) -> Tensor:
        keep, power, out = torch.sigmoid(self.decay), torch.ones_like(x[:, 0]), []
        for token in x.unbind(1):
            power = keep * power + (1 - keep) * token.pow(2)
            out.append(token * torch.rsqrt(power + 1e-6))
        return torch.stack(out, 1).to(x.dtype)


class WarmupBlend(nn.Module):
    """Goes from tanh to the token's own RMS norm over 20 training calls, counted in a buffer. Two calls with
    the same input differ, by the number of calls alone: no token or row sees another."""

    def __init__(self, n_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n_features))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += int(self.training)
        share = (self.calls / 20).clamp(max=1.0).to(x.dtype)
        return (torch.lerp(torch.tanh(x), unit(x), share) * self.weight).to(x.dtype)


HONEST = (
    CumulativeMoments,
    PaddedFftFilter,
    SteepPositionGain,
    CoarseQuantiser,
    LoggedStatistics,
    TrainingNoise,
    CheckpointedTwice,
    HandWrittenBackward,
    SortedTopFeatures,
    ZeroAtStart,
    CausalEmaLoop,
    WarmupBlend,
)
