"""Compute the map of a norm: each input number with its output number (Zhu et al. 2025, arXiv 2503.10622,
figure 2). LayerNorm's map is S-shaped although LayerNorm is linear for each token.

python -m scripts.blocks runs/NAME draws the maps of a trained model.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from probe.hooks import forward_hooks
from probe.metric_names import SLOTS


def norms(model: Any) -> dict[str, nn.Module]:
    """Return the norms on the stream and around the branches of a model.GPT, by site: ``03.mlp.pre``,
    ``final``."""
    slots = {
        f"{i:02d}.{kind}.{slot}": getattr(getattr(block, kind), slot, nn.Identity())
        for i, block in enumerate(model.blocks)
        for kind in ("attn", "mlp")
        for slot in SLOTS
    }
    slots["final"] = model.final
    return {site: norm for site, norm in slots.items() if not isinstance(norm, nn.Identity)}


@torch.no_grad()
def maps(model: Any, idx: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the input and output of each norm for tokens ``idx`` (B, T): two tensors (B, T, C) per site.

    A ``bias`` and a ``weight`` with one number per channel are undone in the output, because numbers that
    differ between channels would blur the map."""
    pairs: dict[str, tuple[Tensor, Tensor]] = {}

    def record(site: str, norm: nn.Module, args: tuple[Tensor], y: Tensor) -> None:
        weight, bias = (of_channels(getattr(norm, name, None), y) for name in ("weight", "bias"))
        y = y if bias is None else y - bias
        y = y if weight is None else y / weight
        pairs[site] = args[0], y

    with forward_hooks((norm, partial(record, site)) for site, norm in norms(model).items()):
        model(idx)
    return pairs


def of_channels(value: Any, y: Tensor) -> Tensor | None:
    """Return ``value`` if it has one number for each channel of y (…, C), else None."""
    return value if isinstance(value, Tensor) and value.shape == y.shape[-1:] else None


def line_fit(x: Tensor, y: Tensor) -> float:
    """Return R² = 1 − Σ(y − a·x)² / Σ(y − ȳ)² of the best fit y ≈ a·x, a straight line through 0."""
    fitted = x * ((x * y).sum() / x.square().sum())
    return (1 - (y - fitted).square().sum() / (y - y.mean()).square().sum()).item()


def tanh_fit(x: Tensor, y: Tensor) -> tuple[float, float]:
    """Return R² of the best fit y ≈ a·tanh(αx), and α times the rms of x; this product is small for a
    straight line."""
    rms = x.square().mean().sqrt()
    best = (-float("inf"), 0.0)
    for steepness in torch.logspace(-2, 1, 61).tolist():
        best = max(best, (line_fit(torch.tanh(steepness * x / rms), y), steepness))
    return best
