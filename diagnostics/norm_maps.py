"""What a norm makes of the numbers that go into it, one by one: the maps of Zhu et al. 2025 (arXiv
2503.10622, figure 2), which in LayerNorm are S-shaped although it is linear for each token.

python -m scripts.blocks runs/NAME draws those of a trained model.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

SLOTS = ("pre", "out", "post")


def norms(model: Any) -> dict[str, nn.Module]:
    """Each norm on the stream or around a branch of a model.GPT, by its site, as ``03.mlp.pre``; and
    ``final``."""
    found = {
        f"{i:02d}.{kind}.{slot}": getattr(getattr(block, kind), slot)
        for i, block in enumerate(model.blocks)
        for kind in ("attn", "mlp")
        for slot in SLOTS
    }
    found["final"] = model.final
    return {site: norm for site, norm in found.items() if not isinstance(norm, nn.Identity)}


@torch.no_grad()
def maps(model: Any, idx: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """What goes into each norm and what comes out, before its gain and bias: two tensors (B, T, C) a site.

    The gain and bias differ by channel and would blur the map; a norm that has them by the names ``weight``
    and ``bias`` is seen without them.
    """
    found: dict[str, tuple[Tensor, Tensor]] = {}

    def looking(site: str) -> Callable[[nn.Module, tuple[Tensor], Tensor], None]:
        def look(norm: nn.Module, args: tuple[Tensor], y: Tensor) -> None:
            weight, bias = getattr(norm, "weight", None), getattr(norm, "bias", None)
            y = y if bias is None else y - bias
            found[site] = args[0], y if weight is None or weight.ndim == 0 else y / weight

        return look

    hooks = [norm.register_forward_hook(looking(site)) for site, norm in norms(model).items()]
    try:
        model(idx)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def r_squared(y: Tensor, fitted: Tensor) -> float:
    """1 − Σ(y − fitted)² / Σ(y − ȳ)²"""
    return (1 - (y - fitted).square().sum() / (y - y.mean()).square().sum()).item()


def straight(x: Tensor, y: Tensor) -> float:
    """How much of a map a straight line through 0 explains: R² of the best y ≈ a·x."""
    return r_squared(y, x * ((x * y).sum() / x.square().sum()))


def s_shaped(x: Tensor, y: Tensor) -> tuple[float, float]:
    """R² of the best y ≈ a·tanh(αx), and its α, times the root mean square of x: small is a straight line."""
    size = x.square().mean().sqrt()
    best = (-float("inf"), 0.0)
    for steepness in torch.logspace(-2, 1, 61).tolist():
        bent = torch.tanh(steepness * x / size)
        best = max(best, (r_squared(y, bent * ((bent * y).sum() / bent.square().sum())), steepness))
    return best
