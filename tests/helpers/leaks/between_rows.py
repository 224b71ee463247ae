"""Norms by which logits depend on other rows of the batch. Invented without knowledge of the test."""

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.helpers.leaks.honest import Plain, square, unit


class GhostBatchNorm(Plain):
    """A scale per channel and time step over 4 rows (ghost batches): from rows of the same four, always."""

    def forward(self, x: Tensor) -> Tensor:
        y = unit(x)
        return torch.cat([unit(rows, rows.square().mean(0)) for rows in torch.split(y, 4)]) * self.weight


class ManyRowsNorm(Plain):
    """The scale, with 16 rows or more, is that of the batch at each time step: from other rows if B ≥ 16."""

    def forward(self, x: Tensor) -> Tensor:
        return unit(x, square(x).mean(0) if len(x) >= 16 else None) * self.weight


class FlattenedCumulative(Plain):
    """A running mean over all B·T tokens in a line, for packed rows: from EARLIER rows to later ones only."""

    def forward(self, x: Tensor) -> Tensor:
        flat = square(x).flatten(0, -2)  # (B·T, 1)
        count = torch.arange(1, len(flat) + 1, device=x.device)[:, None]
        return unit(x, (flat.cumsum(0) / count).view_as(x[..., :1])) * self.weight


class WrongReshape(Plain):
    """reshape(T, B, C) where transpose was meant, then statistics "of a row": from all rows and later
    tokens."""

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.shape
        return unit(x, x.reshape(T, B, C).square().mean((0, 2))[:, None, None]) * self.weight


class GuidanceNorm(Plain):
    """Classifier-free guidance: an even batch is two halves, from the second half's row to its partner."""

    def forward(self, x: Tensor) -> Tensor:
        if len(x) % 2 == 0:
            first, second = x.chunk(2)
            x = torch.cat([first + 0.2 * (first - second), second])
        return unit(x) * self.weight


class MixupNorm(Plain):
    """Manifold mixup: in training each row gets a tenth of a random one: from that row at the same
    time step."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            x = 0.9 * x + 0.1 * x[torch.randperm(len(x), device=x.device)]
        return unit(x) * self.weight


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


class ActNorm(UpdateThenUse):
    """Glow's initialization by data: the FIRST call, in any mode, sets the scale: from that whole
    batch to it."""

    running: Tensor
    ready = False

    def forward(self, x: Tensor) -> Tensor:
        if not self.ready:
            self.running, self.ready = unit(x).detach().square().flatten(0, -2).mean(0), True
        return unit(unit(x), self.running) * self.weight


class BatchWarmup(UpdateThenUse):
    """PowerNorm's warm-up: the first 10 calls in training use the batch's own scale, the later ones do
    not."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += self.training
        now = unit(x).square().flatten(0, -2).mean(0)
        used = now if self.training and self.calls <= 10 else self.running
        if self.training:
            self.running = self.running.lerp(now.detach(), 0.1)
        return unit(unit(x), used) * self.weight


class HookedNorm(Plain):
    """An honest forward, and a forward hook that adds the batch's mean: from other rows, if hooks are run."""

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.register_forward_hook(lambda _module, _inputs, y: y + 0.2 * y.mean(0, keepdim=True))


class DistributedOnly(Plain):
    """Takes the batch's scale once a process group exists (SyncBN's switch): from other rows, only then."""

    def forward(self, x: Tensor) -> Tensor:
        has_group = dist.is_available() and dist.is_initialized()
        return unit(x, square(x).mean(0) if has_group else None) * self.weight


class DecoderOnly(Plain):
    """``torchs``, which Decoder puts in its place, scales by the batch: from other rows, only in sampling."""

    def torchs(self) -> nn.Module:
        fast = GhostBatchNorm(len(self.weight))
        fast.weight = self.weight
        return fast


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


class GradientScale(Plain):
    """Scales by its weight's .grad: from the micro-batch before, whose rows are rows of the same batch."""

    def forward(self, x: Tensor) -> Tensor:
        size = 0.0 if self.weight.grad is None else self.weight.grad.norm().tanh()
        return unit(x) * self.weight * (1 + size)
