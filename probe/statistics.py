"""Compute each statistic from tensors, and the norms of a step's gradients, weights and updates.

docs/looking.md explains the statistics. Tensors are fp32. Moments are taken over all numbers of a tensor
(B, T, C); ratios and cosines are computed for each token and then averaged. Every result is a 0-d tensor on
the same device. If several ranks train together, each has an equal share of the batch, and every rank gets
the result for the global batch."""

import math
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ReduceOp

BINS = 64  # number of bins of a histogram
QUERIES, SEQUENCES = 16, 8  # numbers of queries and sequences sampled for the statistics of attention
SATURATION = 2.0  # |αx| beyond which tanh(αx) is flat: tanh 2 = 0.964


def world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def all_reduce(x: Tensor, op: "ReduceOp.RedOpType" = ReduceOp.SUM) -> Tensor:
    """Reduce x over ranks, in place."""
    if world_size() > 1:
        dist.all_reduce(x, op)
    return x


def mean(x: Tensor, dim: tuple[int, ...] | None = None) -> Tensor:
    """Return E x, the mean over the dimensions ``dim``, by default over all."""
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


# metric_names.MOMENTS lists the same names, as tests/probe/test_metric_names.py verifies
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
    the first 8 sequences of the global batch and at most 16 evenly spaced queries that include the last
    position. A rank that has none of these sequences returns empty tensors."""
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
    entropies = -(log_p.exp() * log_p.masked_fill(future, 0.0)).sum(-1)
    total, n = all_reduce(torch.stack([entropies.sum(), entropies.new_full((), entropies.numel())]))
    return total / n


def max_logit(q: Tensor, k: Tensor) -> Tensor:
    """Largest q·k/√d between a query and a key that it may attend to."""
    logits, future = attention_logits(q, k)
    visible = logits.masked_fill(future, -math.inf)
    no_logit = visible.new_full((), -math.inf)  # on a rank without sampled sequences
    return all_reduce(visible.max() if visible.numel() else no_logit, ReduceOp.MAX)


def mean_size(x: Tensor, parameter: Tensor) -> Tensor:
    """Mean |parameter|, for a norm's weight or the α of DyT's tanh(αx). The input x is not used."""
    return parameter.abs().mean()


def mean_gap(x: Tensor, running_mean: Tensor, running_var: Tensor) -> Tensor:
    """Root mean square over channels of (batch mean − running mean) / running standard deviation."""
    return rms((mean(x, (0, 1)) - running_mean) / running_var.sqrt())


def std_gap(x: Tensor, running_var: Tensor) -> Tensor:
    """Root mean square over channels of ln(batch standard deviation / running standard deviation)."""
    batch_var = mean((x - mean(x, (0, 1))).square(), (0, 1))
    return rms(0.5 * (batch_var / running_var).log())


def saturation(x: Tensor, alpha: Tensor) -> Tensor:
    """Share of inputs with |αx| > 2, for norms with an α, such as DyT's tanh(αx)."""
    return mean(((alpha * x).abs() > SATURATION).float())


# name -> a function of a norm's input and of some of its tensors, and the names of these tensors
NORM_INTERNALS: dict[str, tuple[Callable[..., Tensor], tuple[str, ...]]] = {
    "gain": (mean_size, ("weight",)),
    "alpha": (mean_size, ("alpha",)),
    "mean_gap": (mean_gap, ("running_mean", "running_var")),
    "std_gap": (std_gap, ("running_var",)),
    "saturation": (saturation, ("alpha",)),
}


def tensors_of(norm: nn.Module, names: tuple[str, ...], x: Tensor) -> list[Tensor] | None:
    """Return the norm's tensors with these names. Return None if one is missing, or is neither a scalar nor
    one number per channel of x (B, T, C)."""
    tensors: list[Any] = [getattr(norm, name, None) for name in names]
    shapes = ((), (1,), x.shape[-1:])
    return tensors if all(isinstance(t, Tensor) and t.shape in shapes for t in tensors) else None


def histogram(x: Tensor) -> Tensor:
    """Return the lowest and highest finite number, the count of non-finite numbers, and the counts of finite
    numbers in 64 equal bins between the lowest and the highest: (3 + 64,). Counting integers is
    deterministic, even on a GPU."""
    finite = x.isfinite()
    low = all_reduce(torch.where(finite, x, math.inf).min(), ReduceOp.MIN)
    high = all_reduce(torch.where(finite, x, -math.inf).max(), ReduceOp.MAX)
    # halved first, as the difference of two finite numbers may overflow
    position = (torch.where(finite, x, low) / 2 - low / 2) / (high / 2 - low / 2).clamp(min=1e-30)
    bins = torch.where(finite, (BINS * position).clamp(0, BINS - 1), BINS).long()
    counts = all_reduce(torch.bincount(bins.flatten(), minlength=BINS + 1)).float()
    return torch.cat([torch.stack([low, high]), counts[BINS:], counts[:BINS]])


def norm(tensors: Sequence[Tensor]) -> Tensor:
    """Return √Σ x² over all numbers of all tensors, in fp32."""
    return torch.stack([torch.linalg.vector_norm(t, dtype=torch.float32) for t in tensors]).norm()


class Weights:
    """Measure the norms that ``wanted`` selects, for the update between ``before`` and ``after``.

        weights = Weights(model, metric_names.selection(["grad.norm", "update.ratio"], sites=["*"]))
        values = weights.before()  # after backward
        optimizer.step()
        values |= weights.after()
        values["update.ratio/00"]  # a 0-d tensor on the model's device

    Only the matrices of ``embed`` and of each block ``LL`` count: gains and biases are vectors, and which of
    these exist depends on the norm."""

    def __init__(self, model: Any, wanted: Callable[[str], bool]) -> None:
        parts: dict[str, nn.Module] = {"embed": model.embed}
        parts |= {f"{i:02d}": block for i, block in enumerate(model.blocks)}
        self.matrices = {site: [p for p in part.parameters() if p.dim() >= 2] for site, part in parts.items()}
        self.wanted = wanted
        self.copies: dict[str, list[Tensor]] = {}

    @torch.no_grad()
    def before(self) -> dict[str, Tensor]:
        """Return grad.norm and weight.norm; call it when the gradients are complete and not yet clipped."""
        values = {}
        for site, matrices in self.matrices.items():
            if self.wanted(name := f"grad.norm/{site}"):
                values[name] = norm([p.grad for p in matrices if p.grad is not None])
            if self.wanted(name := f"weight.norm/{site}"):
                values[name] = norm(matrices)
            if self.wanted(f"update.ratio/{site}"):
                self.copies[site] = [p.clone() for p in matrices]
        return values

    @torch.no_grad()
    def after(self) -> dict[str, Tensor]:
        """Return update.ratio; call it after the optimizer's step."""
        values = {}
        for site, copies in self.copies.items():
            changes = [p - copy for p, copy in zip(self.matrices[site], copies, strict=True)]
            values[f"update.ratio/{site}"] = norm(changes) / norm(copies)
        self.copies.clear()
        return values


def on_host(values: dict[str, Tensor]) -> dict[str, Any]:
    """Return plain numbers, copied from the device in one transfer. A histogram, the only value that is not
    0-d, becomes a dict of low, high, nonfinite and counts."""
    flat = torch.cat([value.flatten().float() for value in values.values()]).tolist() if values else []
    numbers, plain = iter(flat), dict[str, Any]()
    for name, value in values.items():
        if value.ndim == 0:
            plain[name] = next(numbers)
            continue
        low, high, *counts = islice(numbers, value.numel())
        nonfinite, *counts = map(int, counts)
        plain[name] = {"low": low, "high": high, "nonfinite": nonfinite, "counts": counts}
    return plain
