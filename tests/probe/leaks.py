"""Modules by which logits depend on tokens that they must not see, and odd ones by which they do not.

Each is as small as its trick allows. Most were invented without knowledge of the certificate.

A value in a table is a norm's function f(module, x), or the keyword arguments for ``model.GPT``:
``arguments(value)`` returns these in both cases. Shapes: B rows, T time steps, C channels.
"""

import time
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from model.attention import Attend, CausalSelfAttention
from model.batchnorms import BatchNorm
from model.embeddings import Embedding
from model.mlp import MLP
from model.placements import Pre, Residual

Entry = Any  # a norm's function, or keyword arguments for GPT


def square(x: Tensor) -> Tensor:
    return x.square().mean(-1, keepdim=True)


def unit(x: Tensor, s: Tensor | None = None) -> Tensor:
    """Return x / √s; by default s is the mean square of each token."""
    return x * ((square(x) if s is None else s) + 1e-5).rsqrt()


def over_time(x: Tensor) -> Tensor:
    return x.mean(1, keepdim=True)


def steps(x: Tensor) -> Tensor:
    return torch.arange(x.shape[1], device=x.device)[:, None]  # (T, 1)


class Norm(nn.Module):
    """f(self, x) · weight; by default an RMSNorm. f may use two parameters that start at 0, two buffers and
    the attributes."""

    memory: Tensor | None = None
    count = 0

    def __init__(self, n: int, f: Any = lambda m, x: unit(x)) -> None:
        super().__init__()
        self.f, self.generator = f, torch.Generator()
        self.weight = nn.Parameter(torch.ones(n))
        self.a, self.b = nn.Parameter(torch.zeros(n)), nn.Parameter(torch.zeros(n))
        self.register_buffer("calls", torch.zeros(()))  # in training
        self.register_buffer("running", torch.ones(n))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += self.training
        return self.f(self, x) * self.weight


def arguments(entry: Entry) -> dict[str, Any]:
    return {"norm": Norm, "placement": Pre} | ({"norm": partial(Norm, f=entry)} if callable(entry) else entry)


# Longer functions, in the order of the tables.


def dynamic_int8(m, x):  # one scale for the whole tensor
    scale = unit(x).abs().amax() / 127
    return unit(x) if m.training else (unit(x) / scale).round() * scale


def update_then_use(m, x, training=True, momentum=0.01):
    if m.training == training:
        m.running = m.running.lerp(unit(x).detach().square().mean((0, 1)), momentum)
    return unit(unit(x), m.running)


def eval_memory(m, x):  # the batch before scales this one
    y = unit(unit(x), m.running)
    if not m.training:
        m.running = unit(x).detach().square().mean((0, 1))
    return y


def previous_call_tail(m, x):  # a token shift that is never reset
    fits = m.memory is not None and len(m.memory) == len(x)
    first = m.memory if fits else torch.zeros_like(x[:, :1])
    m.memory = unit(x)[:, -1:].detach()
    return unit(x) + 0.3 * torch.cat((first, unit(x)[:, :-1]), 1)


def input_editor(m, x):  # an honest output
    y = unit(x)
    x.data.add_(over_time(x.data))
    return y


def patches(x, size):  # step 0 is alone, then come patches of ``size`` steps
    parts = [square(x)[:, :1], *square(x)[:, 1:].split(size, 1)]
    return torch.cat([over_time(part).expand_as(part) for part in parts], 1)


def running_power(x):
    return square(x).cumsum(1) / (steps(x) + 1)


def fft_filter(m, x):  # 8 causal taps over time, which wrap around: the first 7 steps see the last 7
    spectrum = torch.fft.rfft(0.6 ** torch.arange(8.0).to(x), x.shape[1])[:, None]
    return torch.fft.irfft(torch.fft.rfft(unit(x), dim=1) * spectrum, x.shape[1], dim=1)


def expert_choice(m, x):  # a gain for the quarter of a row's tokens with the highest scores
    score = unit(x)[..., :1]
    top = score.topk(max(1, x.shape[1] // 4), dim=1).indices
    return unit(x) * (1 + torch.zeros_like(score).scatter(1, top, 1.0))


def second_half_rows(m, x):  # divided by the power of their twins in the first half
    half, s = len(x) // 2, square(x)
    return unit(x, torch.cat((s[:half], s[:half], s[2 * half :])))


def long_pooled(m, x):
    s = square(x).mT
    if x.shape[1] > 64:
        s = F.interpolate(F.avg_pool1d(s, 4, ceil_mode=True), size=x.shape[1], mode="linear")
    return unit(x, s.mT)


def repeated_token(m, x):  # a token is damped by how often it occurs in its row
    likeness = unit(x) @ unit(x).mT / x.shape[-1]
    return unit(x) / (likeness > 0.98).sum(-1, keepdim=True).clamp(min=1)


def rejection_noise(m, x):  # draws as many numbers as the batch has positive features
    torch.rand(int((x > 0).sum()))
    return unit(x) + 0.1 * torch.randn_like(x)


def lazy_table(m, x):
    if m.memory is None or len(m.memory) < x.shape[1]:
        m.memory = 1 + 0.1 * steps(x).cos()
    return unit(x) * m.memory[: x.shape[1]]


def padded_fft(m, x):  # a causal average of the power, up to the last digits
    T = x.shape[1]
    kernel = torch.fft.rfft(0.5 ** torch.arange(1, T + 1).to(x), n=2 * T)
    s = torch.fft.irfft(torch.fft.rfft(square(x).mT, n=2 * T) * kernel, n=2 * T)[..., :T].mT
    return unit(x, s.clamp(min=0))


class WithBackward(torch.autograd.Function):
    """An RMS norm whose backward pass is given: (x, gradient) -> gradient."""

    @staticmethod
    def forward(ctx, x, backward):
        ctx.save_for_backward(x)
        ctx.given = backward
        return unit(x)

    @staticmethod
    def backward(ctx, grad):
        return ctx.given(*ctx.saved_tensors, grad), None


def right_backward(x, grad):
    y = unit(x)
    return unit(grad - y * (grad * y).mean(-1, keepdim=True), square(x))


def centred_backward(x, grad, share=1.0):  # mixes the gradients of all time steps
    grad = right_backward(x, grad)
    return grad - share * over_time(grad)


# Other parts than norms.


class PrefixAttend(Attend):
    """A prefix-LM's mask, by which the first 8 tokens see each other."""

    def forward(self, q, k, v):
        later = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).triu(1)
        later[:8, :8] = False
        return F.scaled_dot_product_attention(q, k, v, attn_mask=~later)


class CapacityMLP(MLP):
    """An expert takes tokens of the flat batch until it is full: earlier rows decide about later ones."""

    def forward(self, x):
        routed = x[..., 0] > 0
        place = routed.flatten().cumsum(0).view_as(routed)
        return super().forward(x) * (routed & (place <= routed.numel() // 8))[..., None]


class Masked(nn.LayerNorm):
    """A causal norm: the mean of earlier tokens is subtracted, by a mask that is a constant parameter."""

    def __init__(self, n):
        super().__init__(n)
        self.mask = nn.Parameter(torch.ones(64, 64).tril() / torch.arange(1, 65)[:, None], False)
        self.count = nn.Parameter(torch.tensor(1), False)

    def forward(self, x):
        return super().forward(x - self.mask @ x * self.count)


class Wiring(Pre):
    """A placement whose residuals are of the class ``kind``, and know their site and a shared list."""

    def __init__(self, n_layer, kind):
        super().__init__(n_layer)
        self.kind, self.shared = kind, []

    def __call__(self, branch, norm, layer, site):
        residual = self.kind(branch, norm, self.slots(layer, site))
        residual.site, residual.shared = site, self.shared
        return residual


class Talking(Residual):
    """Attention's residual leaves its row's mean in the list, the MLP's adds it."""

    def forward(self, x):
        if self.site == "attn":
            self.shared[:] = [0.2 * over_time(x).detach()]
            return super().forward(x)
        return super().forward(x) + self.shared.pop()


class Dropping(Residual):
    """Stochastic depth: the branch is left out by chance, for all rows."""

    def forward(self, x):
        return x if self.training and torch.rand(()) < 1 / 3 else super().forward(x)


# The tables. Names in CamelCase are of a second collection, invented after the certificate was finished.

START: dict[str, Entry] = {  # found at a run's start
    "time_instance": lambda m, x: (x - over_time(x)) / (x.std(1, keepdim=True) + 1e-3),
    "roll_shift": {"final_norm": partial(Norm, f=lambda m, x: unit(0.8 * x + 0.2 * x.roll(1, 1)))},
    "detached": lambda m, x: unit(x) + over_time(unit(x)).detach(),
    "tiny": lambda m, x: unit(x + 1e-8 * over_time(x)),
    "float32_only": lambda m, x: unit(x, over_time(square(x)) if x.dtype == torch.float32 else None),
    "grad_only": lambda m, x: F.layer_norm(x, x.shape[1:]) if torch.is_grad_enabled() else unit(x),
    "slow_gate": lambda m, x: unit(x) * (1 + m.a) + m.a * m.b * over_time(unit(x)),
    "stochastic": lambda m, x: unit(x) - 0.5 * (m.training and torch.rand(()) < 0.05) * over_time(unit(x)),
    "input_editor": input_editor,
    "ghost_batch": lambda m, x: torch.cat([unit(r, r.square().mean(0)) for r in unit(x).split(4)]),
    "dynamic_int8": dynamic_int8,
    "update_then_use": update_then_use,
    "test_time": partial(update_then_use, training=False, momentum=0.1),
    "eval_memory": eval_memory,
    "prefix_attend": {"attention": partial(CausalSelfAttention, attend=PrefixAttend)},
    "capacity": {"mlp": CapacityMLP},
    "final_norm": {"final_norm": BatchNorm},
    "embedding_norm": {"embedding": partial(Embedding, norm=BatchNorm)},
    "qk_norm": {"attention": partial(CausalSelfAttention, qk_norm=BatchNorm)},
    "side_channel": {"placement": partial(Wiring, kind=Talking)},
    **{f"patches_of_{size}": lambda m, x, size=size: unit(x, patches(x, size)) for size in (2, 3, 7, 42)},
    "ShuffledPartnerNorm": lambda m, x: (
        unit(x, (square(x) + square(x)[torch.randperm(len(x))]) / 2) if m.training else unit(x)
    ),
    "EvalReversedScan": lambda m, x: unit(
        x, running_power(x) if m.training else running_power(x.flip(1)).flip(1)
    ),
    "FftWrapConv": fft_filter,
    "TinyMaxOverTime": lambda m, x: unit(x) + 1e-3 * unit(x).amax(1, keepdim=True),
    "FlattenedShift": lambda m, x: unit(x) + 0.2 * F.pad(unit(x).flatten(0, 1)[:-1], (0, 0, 1, 0)).view_as(x),
    "ReshapedChannels": lambda m, x: unit(x.reshape(len(x), x.shape[2], -1).mT).mT.reshape(x.shape),
    "ExpertChoiceGain": expert_choice,
    "CentredGradientNorm": lambda m, x: WithBackward.apply(x, centred_backward),
    "PreviousCallTail": previous_call_tail,
    "SecondHalfRows": second_half_rows,
    "rejection_noise": rejection_noise,  # debatable: its logits depend on all tokens under one seed only
}
END: dict[str, Entry] = {  # found at a run's end alone: the leak comes with the calls in training
    "late_schedule": lambda m, x: unit(x) - 0.5 * (m.calls > 30) * over_time(unit(x)),
    "RampedBatchMix": lambda m, x: unit(
        x, square(x).lerp(square(x).mean(), ((m.calls - 50) / 100).clamp(0, 0.5))
    ),
}
NEVER: dict[str, Entry] = {  # not found in such a run, because it leaks only …
    # … in mixed precision
    "autocast_only": lambda m, x: (
        F.layer_norm(x, x.shape[1:]) if torch.is_autocast_enabled("cpu") else unit(x)
    ),
    # … inside torch.compile
    "compiled_only": lambda m, x: F.layer_norm(x, x.shape[1:]) if torch.compiler.is_compiling() else unit(x),
    # … in rows of more than 64 tokens
    "LongSequencePooled": long_pooled,
    # … for equal vectors, which positions make different
    "RepeatedTokenDamp": repeated_token,
    # … if a value is above 10, as none of the batch is
    "SpikeGuard": lambda m, x: torch.tanh(5 * x / x.detach().abs().amax().clamp(min=10)),
    # … the number of tokens, which is the same in every batch
    "LengthScaledGain": lambda m, x: unit(x) * (1 + 0.5 * steps(x) / x.shape[1]),
}

HONEST: dict[str, Entry] = {
    "plain": lambda m, x: unit(x),
    "noisy": lambda m, x: unit(x) + 0.1 * torch.randn_like(x),
    "own_generator": lambda m, x: (
        unit(x) + 0.1 * torch.randn(x.shape[1:], generator=m.generator, dtype=x.dtype)
    ),
    "buffer_counter": lambda m, x: unit(x) * (1 + 0.01 * m.running.add_(1)),
    "lazy_table": lazy_table,
    "row_index_scale": lambda m, x: unit(x) * (1 + 0.1 * torch.arange(len(x))[:, None, None]),
    "huge": lambda m, x: unit(x) * 1e8,
    "tiny_output": lambda m, x: unit(x) * 1e-20,
    "chaotic": lambda m, x: (1e5 * unit(x)).sin(),
    "padded_fft": padded_fft,  # rounding alone depends on later tokens
    "heads": {
        "attention": partial(CausalSelfAttention, qk_norm=partial(Norm, f=lambda m, x: F.normalize(x)))
    },
    "zero_gated": lambda m, x: unit(x) + 0 * x.mean((0, 1)),
    "dead": lambda m, x: torch.zeros_like(x),
    "cast": lambda m, x: (padded_fft(m, x.float()) @ torch.eye(x.shape[-1])).to(x.dtype, copy=True),
    "masked": {"norm": Masked},
    "stochastic_depth": {"placement": partial(Wiring, kind=Dropping)},
    "CheckpointedTwice": lambda m, x: checkpoint(lambda v: unit(unit(v) + 0.1), x, use_reentrant=False),
    "HandWrittenBackward": lambda m, x: WithBackward.apply(x, right_backward),
    "ZeroAtStart": lambda m, x: unit(x) * m.a,
}
CANNOT_TELL: dict[str, tuple[str, Entry]] = {
    "clock": (
        "its output for the same tokens differs each time",
        lambda m, x: unit(x) * (1 + time.perf_counter_ns() % 1000 / 10_000),
    ),
    "nan": ("its logits are not finite", lambda m, x: unit(x) * torch.nan),
}
