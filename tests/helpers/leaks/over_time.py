"""Norms by which logits depend on later tokens of their row. Invented without knowledge of the test."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.helpers.leaks.honest import Plain, square, unit


class TimeInstanceNorm(Plain):
    """Each channel is standardized over the whole row (InstanceNorm1d): from every later token, always."""

    def forward(self, x: Tensor) -> Tensor:
        return (x - x.mean(-2, keepdim=True)) / (x.std(-2, keepdim=True, correction=0) + 1e-3) * self.weight


class NormalizeDefaultDim(Plain):
    """F.normalize without dim, whose default 1 is time in (B, T, C): from every later token, always."""

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = F.normalize(x) * x.shape[1] ** 0.5
        return y * self.weight


class TransposedGroupNorm(nn.GroupNorm):
    """GroupNorm(1, C) fed (B, C, T), so its statistics run over time too: from every later token, always."""

    def __init__(self, n: int) -> None:
        super().__init__(1, n)

    def forward(self, input: Tensor) -> Tensor:
        y: Tensor = super().forward(input.mT)
        return y.mT


class PatchNorm(Plain):
    """One scale for 4 successive tokens: from the later tokens of the same patch alone, always."""

    def forward(self, x: Tensor) -> Tensor:
        s = F.avg_pool1d(square(x).mT, 4, ceil_mode=True).repeat_interleave(4, -1)
        return unit(x, s[..., : x.shape[-2]].mT) * self.weight


class CentredWindowNorm(Plain):
    """A moving average of the scale over t−1, t, t+1, "same" padding: from the very next token, always."""

    def forward(self, x: Tensor) -> Tensor:
        return unit(x, F.avg_pool1d(square(x).mT, 3, 1, padding=1).mT) * self.weight


class CircularFFTNorm(Plain):
    """A causal average by FFT without zero padding: from the last few tokens around to the first few."""

    def forward(self, x: Tensor) -> Tensor:
        T = x.shape[-2]
        kernel = torch.fft.rfft(0.5 ** torch.arange(1, T + 1, dtype=x.dtype, device=x.device))
        s = torch.fft.irfft(torch.fft.rfft(square(x).mT) * kernel, n=T).mT
        return unit(x, s.clamp(min=0)) * self.weight


class RollShift(Plain):
    """RWKV's token shift by torch.roll: from the last token to position 0 and, as the final norm, no
    other."""

    def forward(self, x: Tensor) -> Tensor:
        return unit(0.8 * x + 0.2 * x.roll(1, -2)) * self.weight


class BeaconNorm(Plain):
    """A summary token at positions 0, 16, 32, … takes the mean of its chunk: from its 15 later tokens
    to it."""

    def forward(self, x: Tensor) -> Tensor:
        chunks = [torch.cat([c.mean(-2, keepdim=True), c[..., 1:, :]], -2) for c in torch.split(x, 16, -2)]
        return unit(torch.cat(chunks, -2)) * self.weight


class LongContextNorm(Plain):
    """Rows of more than 48 tokens are rescaled by their own length's statistics: from later tokens if
    T > 48."""

    def forward(self, x: Tensor) -> Tensor:
        return unit(x, square(x).mean(-2, keepdim=True) if x.shape[-2] > 48 else None) * self.weight


class MedianClip(Plain):
    """Tokens larger than the row's median are clipped to it: from the later token that moves the median."""

    def forward(self, x: Tensor) -> Tensor:
        s = square(x)
        return unit(x, torch.maximum(s, s.median(-2, keepdim=True).values)) * self.weight


class OneBitNorm(Plain):
    """A factor 1.05 or 0.95 by the sign of the row's mean, no gradient: from later tokens that flip
    the bit."""

    def forward(self, x: Tensor) -> Tensor:
        return unit(x) * self.weight * (1 + 0.05 * x.mean((-2, -1), keepdim=True).sign())


class DetachedContext(Plain):
    """Adds the row's mean, detached: from every later token, though no gradient flows along that path."""

    def forward(self, x: Tensor) -> Tensor:
        return (unit(x) + unit(x).detach().mean(-2, keepdim=True)) * self.weight


class TinyLeak(Plain):
    """Adds 1e-8 of the row's mean: from every later token, always, mostly lost in the rounding of fp32."""

    def forward(self, x: Tensor) -> Tensor:
        return unit(x + 1e-8 * x.mean(-2, keepdim=True)) * self.weight


class Float32Only(Plain):
    """The "fast path" of fp32 takes the scale of the whole row: from later tokens, not in fp64 or bf16."""

    def forward(self, x: Tensor) -> Tensor:
        return unit(x, square(x).mean(-2, keepdim=True) if x.dtype == torch.float32 else None) * self.weight


class BF16Only(Plain):
    """The kernel for bf16 normalizes whole rows: from later tokens, only if the model itself is in bf16."""

    def forward(self, x: Tensor) -> Tensor:
        return unit(x, square(x).mean(-2, keepdim=True) if x.dtype == torch.bfloat16 else None) * self.weight


class AutocastOnly(Plain):
    """Its mixed-precision path normalizes over (T, C): from later tokens, only under torch.autocast."""

    def forward(self, x: Tensor) -> Tensor:
        mixed = torch.is_autocast_enabled(x.device.type)
        return (F.layer_norm(x, x.shape[-2:]) if mixed else unit(x)) * self.weight


class CompiledOnly(Plain):
    """Its path for the compiler normalizes over (T, C): from later tokens, only inside torch.compile."""

    def forward(self, x: Tensor) -> Tensor:
        return (F.layer_norm(x, x.shape[-2:]) if torch.compiler.is_compiling() else unit(x)) * self.weight


class NoGradOnly(Plain):
    """Its inference kernel normalizes over (T, C): from later tokens, only under no_grad or
    inference_mode."""

    def forward(self, x: Tensor) -> Tensor:
        return (unit(x) if torch.is_grad_enabled() else F.layer_norm(x, x.shape[-2:])) * self.weight


class GradOnly(Plain):
    """Its differentiable path normalizes over (T, C): from later tokens, only where gradients are
    recorded."""

    def forward(self, x: Tensor) -> Tensor:
        return (F.layer_norm(x, x.shape[-2:]) if torch.is_grad_enabled() else unit(x)) * self.weight


class TrainedGate(Plain):
    """Adds gate · the row's mean, the gate 0 at the start: from later tokens, after one step of training."""

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.gate = nn.Parameter(torch.zeros(n))

    def forward(self, x: Tensor) -> Tensor:
        return unit(x) * self.weight + self.gate * unit(x).mean(-2, keepdim=True)


class SlowGate(Plain):
    """A TrainedGate whose gate is a·b, both 0 at the start; b learns once a ≠ 0: from later tokens, after
    two steps."""

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.a, self.b = nn.Parameter(torch.zeros(n)), nn.Parameter(torch.zeros(n))

    def forward(self, x: Tensor) -> Tensor:
        return unit(x) * (self.weight + self.a) + self.a * self.b * unit(x).mean(-2, keepdim=True)


class ConvSame(Plain):
    """A depthwise convolution, "same" padding, at the start the identity: from token t+1, once it is
    trained."""

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.conv = nn.Conv1d(n, n, 3, padding=1, groups=n, bias=False)
        nn.init.dirac_(self.conv.weight, groups=n)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(unit(x).mT).mT
        return y * self.weight


class StochasticContext(Plain):
    """In one of 20 calls in training the row's mean is subtracted: from later tokens, by chance."""

    def forward(self, x: Tensor) -> Tensor:
        y = unit(x)
        if self.training and torch.rand(()) < 0.05:
            y = y - 0.5 * y.mean(-2, keepdim=True)
        return y * self.weight


class LateSchedule(Plain):
    """After 30 calls in training (a buffer counts) it centres over time: from later tokens, from then on."""

    calls: Tensor

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += int(self.training)
        return (unit(x) - (self.calls > 30) * unit(x).mean(-2, keepdim=True) * 0.5) * self.weight


class InputEditor(Plain):
    """Its output is honest, but it adds the row's mean to its INPUT, the stream, by .data: from later
    tokens."""

    def forward(self, x: Tensor) -> Tensor:
        y = unit(x) * self.weight
        x.data.add_(x.data.mean(-2, keepdim=True))
        return y


class OverflowGuard(Plain):
    """Halves a row with a value beyond 5: from a later token of the row, if it has a huge embedding."""

    def forward(self, x: Tensor) -> Tensor:
        return unit(x) * self.weight * torch.where(x.abs().amax((-2, -1), keepdim=True) > 5, 0.5, 1.0)


class SharedExponent(Plain):
    """4 tokens share a power of two, as in block floating point: from the patch's largest token, if that
    crosses a power of two."""

    def forward(self, x: Tensor) -> Tensor:
        y = unit(x)
        top = F.max_pool1d(y.abs().amax(-1, keepdim=True).mT, 4, ceil_mode=True).repeat_interleave(4, -1)
        step = 2 ** ((1.6 * top[..., : x.shape[-2]].mT).clamp(min=1e-30).log2().floor() - 4)
        return (y + ((y / step).round() * step - y).detach()) * self.weight
