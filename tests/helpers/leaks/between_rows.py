"""Norms by which logits depend on other rows of the batch. Invented without knowledge of the test."""

import torch
from torch import Tensor

from tests.helpers.leaks.honest import Plain, square, unit


class GhostBatchNorm(Plain):
    """A scale per channel and time step over 4 rows (ghost batches): from rows of the same four, always."""

    def forward(self, x: Tensor) -> Tensor:
        y = unit(x)
        return torch.cat([unit(rows, rows.square().mean(0)) for rows in torch.split(y, 4)]) * self.weight


class DynamicInt8(Plain):
    """In evaluation, int8 with one scale for the tensor: from the token, anywhere, with the largest
    feature."""

    def forward(self, x: Tensor) -> Tensor:
        y = unit(x)
        scale = y.abs().amax() / 127
        return (y if self.training else (y / scale).round() * scale) * self.weight


class PrefixSharing(Plain):
    """In evaluation, rows with the same first token share the first such row's scales: from it to the
    others."""

    def forward(self, x: Tensor) -> Tensor:
        s = square(x)
        if not self.training:
            same = torch.isclose(x[:, None, 0], x[None, :, 0]).all(-1)  # (B, B)
            s = s[same.int().argmax(-1)]
        return unit(x, s) * self.weight


class UpdateThenUse(Plain):
    """A running scale that is updated BEFORE use, momentum 0.01: from the whole batch, in training, by 1%."""

    running: Tensor

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.register_buffer("running", torch.ones(n))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.running = self.running.lerp(unit(x).detach().square().flatten(0, -2).mean(0), 0.01)
        return unit(unit(x), self.running) * self.weight


class AdaptAtTestTime(UpdateThenUse):
    """Adapts its running scale to the batch at test time: from the whole batch, in EVALUATION only."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            self.running = self.running.lerp(unit(x).detach().square().flatten(0, -2).mean(0), 0.1)
        return unit(unit(x), self.running) * self.weight


class HookedNorm(Plain):
    """An honest forward, and a forward hook that adds the batch's mean: from other rows, if hooks are run."""

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.register_forward_hook(lambda _module, _inputs, y: y + 0.2 * y.mean(0, keepdim=True))


class EvalMemory(Plain):
    """In evaluation, rows of the call BEFORE scale those of this call. A leak: logits depend on how rows are
    split into batches."""

    memory: Tensor

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.register_buffer("memory", torch.ones(n))

    def forward(self, x: Tensor) -> Tensor:
        memory = self.memory
        if not self.training:
            self.memory = unit(x).detach().square().flatten(0, -2).mean(0)
        return unit(unit(x), memory) * self.weight
