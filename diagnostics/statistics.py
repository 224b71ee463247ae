"""Compute each statistic from tensors; docs/statistics.md explains the statistics.

Tensors are fp32. Moments are taken over all numbers of a tensor (B, T, C); ratios and cosines are computed
for each token and then averaged. Every result is a 0-d tensor on the same device. If several ranks train
together, each has an equal share of the batch, and every rank gets the result for the global batch."""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ReduceOp

BINS = 64  # number of bins of a histogram
QUERIES, SEQUENCES = 16, 8  # numbers of samples for the statistics of attention
SATURATED = 2.0  # |αx| beyond which tanh(αx) is flat: tanh 2 = 0.964


def world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def all_reduce(x: Tensor, op: "ReduceOp.RedOpType" = ReduceOp.SUM) -> Tensor:
    """Reduce x over ranks, in place."""
    if world_size() > 1:
        dist.all_reduce(x, op)
    return x


def mean(x: Tensor, dim: tuple[int, ...] | None = None) -> Tensor:
    """Return E x, the mean over the dimensions ``dim``, by default all."""
    return all_reduce(x.mean(dim)) / world_size()


def std(x: Tensor) -> Tensor:
    """√E[(x − E x)²]"""
    return mean((x - mean(x)).square()).sqrt()


def rms(x: Tensor) -> Tensor:
    """√E[x²]"""
    return mean(x.square()).sqrt()


def max_abs(x: Tensor) -> Tensor:
    """max |x|"""
    return all_reduce(x.abs().max(), ReduceOp.MAX)


def kurtosis(x: Tensor) -> Tensor:
    """E[((x − E x) / std x)⁴]: 3 for a normal distribution, more with outliers, NaN for a constant."""
    centred = x - mean(x)
    return mean((centred / rms(centred)).square().square())


# metric_names.MOMENTS lists the same names, as tests/diagnostics/test_metric_names.py verifies
MOMENTS: dict[str, Callable[[Tensor], Tensor]] = {
    moment.__name__: moment for moment in (mean, std, rms, max_abs, kurtosis)
}


def ratio(branch: Tensor, stream: Tensor) -> Tensor:
    """Mean over tokens of ‖branch‖ / ‖stream‖, (B, T, C) both."""
    return mean(branch.norm(dim=-1) / stream.norm(dim=-1))


def cosine(x: Tensor, y: Tensor) -> Tensor:
    """Mean over tokens of x·y / (‖x‖ ‖y‖), (B, T, C) both."""
    return mean((x * y).sum(-1) / (x.norm(dim=-1) * y.norm(dim=-1)))


def dead(hidden: Tensor) -> Tensor:
    """Share of an MLP's units, (B, T, units) after the activation, that are positive for no token."""
    return (all_reduce(hidden.amax(dim=(0, 1)), ReduceOp.MAX) <= 0).float().mean()


def attention_logits(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Return q·k/√d of sampled queries, (B, heads, queries, T), and a mask of each query's future keys,
    (queries, T).

    Fused attention does not expose these logits, so they are recomputed from q and k (B, heads, T, d), for
    the first 8 sequences of the global batch and 16 evenly spaced queries that include the last position, or
    fewer if there are fewer. A rank whose sequences come later returns empty tensors."""
    earlier = dist.get_rank() * len(q) if world_size() > 1 else 0  # sequences on lower ranks
    q, k = q[: max(0, SEQUENCES - earlier)], k[: max(0, SEQUENCES - earlier)]
    T, d = q.shape[-2:]
    queries = torch.arange(T - 1, -1, -math.ceil(T / QUERIES), device=q.device)  # positions
    logits = q[:, :, queries] @ k.transpose(-2, -1) / math.sqrt(d)
    return logits, torch.arange(T, device=q.device) > queries[:, None]


def entropy(q: Tensor, k: Tensor) -> Tensor:
    """Mean over queries and heads of −Σ p ln p, in nats, p being the attention weights."""
    logits, future = attention_logits(q, k)
    log_p = logits.masked_fill(future, -math.inf).log_softmax(-1)
    each = -(log_p.exp() * log_p.masked_fill(future, 0.0)).sum(-1)
    total, n = all_reduce(torch.stack([each.sum(), each.new_tensor(each.numel())]))
    return total / n


def max_logit(q: Tensor, k: Tensor) -> Tensor:
    """Largest q·k/√d between a query and a key that it may attend to."""
    logits, future = attention_logits(q, k)
    visible = logits.masked_fill(future, -math.inf)
    no_logit = visible.new_tensor(-math.inf)  # on a rank without sampled sequences
    return all_reduce(visible.max() if visible.numel() else no_logit, ReduceOp.MAX)


# Functions of a norm and its input. None if the norm lacks the tensor, or has another tensor of that name.


def per_channel(norm: nn.Module, name: str, x: Tensor) -> Tensor | None:
    """Return the norm's tensor ``name`` if it is a scalar or has one number per channel of x (B, T, C)."""
    value = getattr(norm, name, None)
    fits = isinstance(value, Tensor) and value.shape in ((), (1,), x.shape[-1:])
    return value if fits else None


def gain(norm: nn.Module, x: Tensor) -> Tensor | None:
    """Mean |weight|."""
    weight = per_channel(norm, "weight", x)
    return None if weight is None else weight.abs().mean()


def alpha(norm: nn.Module, x: Tensor) -> Tensor | None:
    """Mean |α|, for example DyT's in tanh(αx)."""
    value = per_channel(norm, "alpha", x)
    return None if value is None else value.abs().mean()


def mean_gap(norm: nn.Module, x: Tensor) -> Tensor | None:
    """Root mean square over channels of (batch mean − running mean) / running standard deviation."""
    running, var = (per_channel(norm, name, x) for name in ("running_mean", "running_var"))
    return None if running is None or var is None else rms((mean(x, (0, 1)) - running) / var.sqrt())


def std_gap(norm: nn.Module, x: Tensor) -> Tensor | None:
    """Root mean square over channels of ln(batch standard deviation / running standard deviation)."""
    var = per_channel(norm, "running_var", x)
    if var is None:
        return None
    batch = mean((x - mean(x, (0, 1))).square(), (0, 1))
    return rms(0.5 * (batch / var).log())


def saturation(norm: nn.Module, x: Tensor) -> Tensor | None:
    """Share of inputs with |αx| > 2, for norms with an α, as DyT's tanh(αx)."""
    value = per_channel(norm, "alpha", x)
    return None if value is None else mean(((value * x).abs() > SATURATED).float())


NORM_INTERNALS: dict[str, Callable[[nn.Module, Tensor], Tensor | None]] = {
    internal.__name__: internal for internal in (gain, alpha, mean_gap, std_gap, saturation)
}


def histogram(x: Tensor) -> Tensor:
    """Return the lowest and highest finite number, the count of non-finite numbers, and the counts of finite
    numbers in 64 equal bins between the lowest and the highest: (3 + 64,). Counting integers is
    deterministic, even on a GPU."""
    finite = x.isfinite()
    low = all_reduce(torch.where(finite, x, math.inf).min(), ReduceOp.MIN)
    high = all_reduce(torch.where(finite, x, -math.inf).max(), ReduceOp.MAX)
    # in halves, as the difference of two finite numbers may overflow
    part = (torch.where(finite, x, low) / 2 - low / 2) / (high / 2 - low / 2).clamp(min=1e-30)
    bins = torch.where(finite, (BINS * part).clamp(0, BINS - 1), BINS).long()
    counts = all_reduce(torch.bincount(bins.flatten(), minlength=BINS + 1)).float()
    return torch.cat([torch.stack([low, high]), counts[BINS:], counts[:BINS]])


def on_host(values: dict[str, Tensor]) -> dict[str, Any]:
    """Return plain numbers, copied from the device at once. A histogram, the only value that is not 0-d,
    becomes a dict of low, high, nonfinite and counts."""
    numbers = torch.cat([value.flatten().float() for value in values.values()]).tolist() if values else []
    plain: dict[str, Any] = {}
    for name, value in values.items():
        head, numbers = numbers[: value.numel()], numbers[value.numel() :]
        if value.ndim:
            low, high, nonfinite, *counts = head
            plain[name] = {
                "low": low,
                "high": high,
                "nonfinite": int(nonfinite),
                "counts": [*map(int, counts)],
            }
        else:
            plain[name] = head[0]
    return plain
