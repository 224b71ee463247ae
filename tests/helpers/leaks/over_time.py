"""Norms by which logits depend on later tokens of their row. Invented without knowledge of the test."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.helpers.leaks.honest import Plain, square, unit


class TimeInstanceNorm(Plain):
    """Each channel is standardized over the whole row (InstanceNorm1d): from every later token, always."""

    def forward(self, x: Tensor) -> Tensor:
        return (x - x.mean(-2, keepdim=True)) / (x.std(-2, keepdim=True, correction=0) + 1e-3) * self.weight


class RollShift(Plain):
    """RWKV's token shift by torch.roll: from the last token to position 0 and, as the final norm, no
    other."""

    def forward(self, x: Tensor) -> Tensor:
        return unit(0.8 * x + 0.2 * x.roll(1, -2)) * self.weight


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


class AutocastOnly(Plain):
    """Its mixed-precision path normalizes over (T, C): from later tokens, only under torch.autocast."""

    def forward(self, x: Tensor) -> Tensor:
        mixed = torch.is_autocast_enabled(x.device.type)
        return (F.layer_norm(x, x.shape[-2:]) if mixed else unit(x)) * self.weight


class CompiledOnly(Plain):
    """Its path for the compiler normalizes over (T, C): from later tokens, only inside torch.compile."""

    def forward(self, x: Tensor) -> Tensor:
        return (F.layer_norm(x, x.shape[-2:]) if torch.compiler.is_compiling() else unit(x)) * self.weight


class GradOnly(Plain):
    """Its differentiable path normalizes over (T, C): from later tokens, only where gradients are
    recorded."""

    def forward(self, x: Tensor) -> Tensor:
        return (F.layer_norm(x, x.shape[-2:]) if torch.is_grad_enabled() else unit(x)) * self.weight


class SlowGate(Plain):
    """Adds a·b · the row's mean, both 0 at the start; b learns once a ≠ 0: from later tokens, after two steps
    of training."""

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.a, self.b = nn.Parameter(torch.zeros(n)), nn.Parameter(torch.zeros(n))

    def forward(self, x: Tensor) -> Tensor:
        return unit(x) * (self.weight + self.a) + self.a * self.b * unit(x).mean(-2, keepdim=True)


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
