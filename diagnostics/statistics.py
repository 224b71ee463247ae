"""Each statistic, as a function of what it is taken of; docs/statistics.md says how to read them.

Tensors come in fp32. Moments are over all of a tensor's numbers, (B, T, C), together; ratios and cosines are
taken for each token and then averaged. Every result is one number, a 0-d tensor on the same device. Where
several processes train together, each has an equal share of the batch, and the result, the same for all, is
that of the whole.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ReduceOp

BINS = 64  # of a histogram
QUERIES, SEQUENCES = 16, 8  # that attention is looked at for
SATURATED = 2.0  # |αx| from which tanh(αx) is flat: tanh 2 = 0.964


def ranks() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def over_ranks(x: Tensor, by: "ReduceOp.RedOpType" = ReduceOp.SUM) -> Tensor:
    """Their sum, or what ``by`` says, in the place of x."""
    if ranks() > 1:
        dist.all_reduce(x, by)
    return x


def mean(x: Tensor, over: tuple[int, ...] | None = None) -> Tensor:
    """E x, over those dimensions or all."""
    return over_ranks(x.mean(over)) / ranks()


def std(x: Tensor) -> Tensor:
    """√E[(x − E x)²]"""
    return mean((x - mean(x)).square()).sqrt()


def rms(x: Tensor) -> Tensor:
    """√E[x²]"""
    return mean(x.square()).sqrt()


def max_abs(x: Tensor) -> Tensor:
    """max |x|"""
    return over_ranks(x.abs().max(), ReduceOp.MAX)


def kurtosis(x: Tensor) -> Tensor:
    """E[((x − E x) / std x)⁴]: 3 for a normal distribution, more with outliers, NaN for a constant."""
    centred = x - mean(x)
    return mean((centred / rms(centred)).square().square())


MOMENTS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": mean,
    "std": std,
    "rms": rms,
    "max_abs": max_abs,
    "kurtosis": kurtosis,
}


def ratio(branch: Tensor, stream: Tensor) -> Tensor:
    """‖branch‖ / ‖stream‖ of each token, (B, T, C) both; the mean."""
    return mean(branch.norm(dim=-1) / stream.norm(dim=-1))


def cosine(x: Tensor, y: Tensor) -> Tensor:
    """x·y / (‖x‖ ‖y‖) of each token, (B, T, C) both; the mean."""
    return mean((x * y).sum(-1) / (x.norm(dim=-1) * y.norm(dim=-1)))


def dead(hidden: Tensor) -> Tensor:
    """Share of an MLP's units, (B, T, units) after the activation, that are positive for no token."""
    return (over_ranks(hidden.amax(dim=(0, 1)), ReduceOp.MAX) <= 0).float().mean()


def attention_logits(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """q·k/√d of some queries, (B, heads, queries, T), and which keys are a query's future, (queries, T).

    They are computed again from q and k (B, heads, T, d), as the model's own attention does not show them:
    for the first 8 sequences at most, and for 16 queries at most, evenly spaced, the last position among
    them. Of several ranks' sequences those of the first rank come first; another may have none to look at.
    """
    earlier = dist.get_rank() * len(q) if ranks() > 1 else 0  # sequences
    q, k = q[: max(0, SEQUENCES - earlier)], k[: max(0, SEQUENCES - earlier)]
    T, d = q.shape[-2:]
    at = torch.arange(T - 1, -1, -math.ceil(T / QUERIES), device=q.device)  # positions of the queries
    logits = q[:, :, at] @ k.transpose(-2, -1) / math.sqrt(d)
    return logits, torch.arange(T, device=q.device) > at[:, None]


def entropy(q: Tensor, k: Tensor) -> Tensor:
    """−Σ p ln p, in nats, of the attention weights p of a query and head; the mean over these."""
    logits, future = attention_logits(q, k)
    log_p = logits.masked_fill(future, -math.inf).log_softmax(-1)
    each = -(log_p.exp() * log_p.masked_fill(future, 0.0)).sum(-1)
    total, n = over_ranks(torch.stack([each.sum(), each.new_tensor(each.numel())]))
    return total / n


def max_logit(q: Tensor, k: Tensor) -> Tensor:
    """The largest q·k/√d among what the queries may attend to."""
    logits, future = attention_logits(q, k)
    visible = logits.masked_fill(future, -math.inf)
    none = visible.new_tensor(-math.inf)  # of a rank that has no sequence to look at
    return over_ranks(visible.max() if visible.numel() else none, ReduceOp.MAX)


# of a norm and its input: None where the norm has no such thing, or means something else by that name


def of_channels(norm: nn.Module, name: str, x: Tensor) -> Tensor | None:
    """The norm's tensor of that name, if it is one number or one for each channel of x (B, T, C)."""
    value = getattr(norm, name, None)
    fits = isinstance(value, Tensor) and value.shape in ((), (1,), x.shape[-1:])
    return value if fits else None


def gain(norm: nn.Module, x: Tensor) -> Tensor | None:
    """Mean |weight|."""
    weight = of_channels(norm, "weight", x)
    return None if weight is None else weight.abs().mean()


def alpha(norm: nn.Module, x: Tensor) -> Tensor | None:
    """Mean |α|, of DyT's tanh(αx) say."""
    found = of_channels(norm, "alpha", x)
    return None if found is None else found.abs().mean()


def mean_gap(norm: nn.Module, x: Tensor) -> Tensor | None:
    """(batch mean − running mean) / running standard deviation, of each channel; the root mean square."""
    running, var = (of_channels(norm, name, x) for name in ("running_mean", "running_var"))
    return None if running is None or var is None else rms((mean(x, (0, 1)) - running) / var.sqrt())


def std_gap(norm: nn.Module, x: Tensor) -> Tensor | None:
    """ln(batch standard deviation / running standard deviation) of each channel; the root mean square."""
    var = of_channels(norm, "running_var", x)
    if var is None:
        return None
    batch = mean((x - mean(x, (0, 1))).square(), (0, 1))
    return rms(0.5 * (batch / var).log())


def saturation(norm: nn.Module, x: Tensor) -> Tensor | None:
    """Share of inputs with |αx| > 2, where the norm has an α, as DyT's tanh(αx)."""
    found = of_channels(norm, "alpha", x)
    return None if found is None else mean(((found * x).abs() > SATURATED).float())


INTERNALS: dict[str, Callable[[nn.Module, Tensor], Tensor | None]] = {
    "gain": gain,
    "alpha": alpha,
    "mean_gap": mean_gap,
    "std_gap": std_gap,
    "saturation": saturation,
}


def histogram(x: Tensor) -> Tensor:
    """Lowest and highest finite number, how many are not finite, and how many of the finite lie in each of 64
    equal bins between the two: (3 + 64,). By whole numbers, so that a GPU counts deterministically, too."""
    finite = x.isfinite()
    low = over_ranks(torch.where(finite, x, math.inf).min(), ReduceOp.MIN)
    high = over_ranks(torch.where(finite, x, -math.inf).max(), ReduceOp.MAX)
    # by halves, as the difference of two finite numbers need not be finite
    part = (torch.where(finite, x, low) / 2 - low / 2) / (high / 2 - low / 2).clamp(min=1e-30)
    bins = torch.where(finite, (BINS * part).clamp(0, BINS - 1), BINS).long()
    counts = over_ranks(torch.bincount(bins.flatten(), minlength=BINS + 1)).float()
    return torch.cat([torch.stack([low, high]), counts[BINS:], counts[:BINS]])


def on_host(values: dict[str, Tensor]) -> dict[str, Any]:
    """The same as plain numbers, by one copy from the device. A histogram, the one thing here that is not
    0-d, is a table of low, high, nonfinite and counts."""
    numbers = torch.cat([value.flatten().float() for value in values.values()]).tolist() if values else []
    plain: dict[str, Any] = {}
    for name, value in values.items():
        mine, numbers = numbers[: value.numel()], numbers[value.numel() :]
        if value.ndim:
            low, high, nonfinite, *counts = mine
            plain[name] = {
                "low": low,
                "high": high,
                "nonfinite": int(nonfinite),
                "counts": list(map(int, counts)),
            }
        else:
            plain[name] = mine[0]
    return plain
