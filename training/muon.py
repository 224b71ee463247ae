"""Muon (Jordan 2024, https://kellerjordan.github.io/posts/muon): momentum, made orthogonal."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from training.device import fast_bf16
from training.optimizer_base import BaseOptimizer

LARGE = 2**16  # elements; a CPU is faster if it takes larger matrices one at a time


class Muon(BaseOptimizer, torch.optim.Muon):
    """torch.optim.Muon, but matrices of one shape are orthogonalised together, as small models have many; and
    in fp32 on a CPU that only emulates bf16, as emulation takes 25 to 40 times as long.

    Args:
        params: matrices (A, B), or several such matrices stacked in one parameter (``parts``).
        lr: learning rate. The update of a matrix is scaled by 0.2·√max(A, B), which gives it the
            root mean square of AdamW's update (Liu et al. 2025, arXiv 2502.16982, eq. 4).
        weight_decay: decoupled, as in AdamW.
        momentum: of the gradient's running mean; the update looks one step ahead (Nesterov).
        parts: how many matrices a parameter holds, if more than one: for example queries, keys and values.
    """

    state_keys = ("momentum_buffer",)  # per parameter, in checkpoints

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float,
        weight_decay: float,
        momentum: float,
        parts: dict[Tensor, int] | None = None,
    ) -> None:
        super().__init__(params, lr, weight_decay, momentum, nesterov=True, adjust_lr_fn="match_rms_adamw")
        self.parts = parts or {}
        on_cpu = self.param_groups[0]["params"][0].device.type == "cpu"
        self.dtype = torch.float32 if on_cpu and not fast_bf16("cpu") else torch.bfloat16

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        def unless_skipped(new: Any, old: Any) -> Any:  # numbers or tensors; nothing waits for the device
            return new if self.found_inf is None else torch.where(self.found_inf == 0, new, old)

        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            for p in params:
                if "momentum_buffer" not in self.state[p]:
                    self.state[p]["momentum_buffer"] = torch.zeros_like(p)
            means = [self.state[p]["momentum_buffer"] for p in params]
            grads = [unless_skipped(p.grad, mean) for p, mean in zip(params, means, strict=True)]
            torch._foreach_lerp_(means, grads, 1 - group["momentum"])
            lookaheads = torch._foreach_lerp(grads, means, group["momentum"])
            torch._foreach_mul_(params, unless_skipped(1 - group["lr"] * group["weight_decay"], 1.0))

            by_shape = defaultdict(list)
            for p, update in zip(params, lookaheads, strict=True):
                matrices = update.unflatten(0, (self.parts.get(p, 1), -1))  # (parts, A, B)
                by_shape[matrices.shape[1:]].append((p, matrices))
            for shape, same_shape in by_shape.items():
                stacked = torch.cat([matrices for _, matrices in same_shape])
                options = group["ns_coefficients"], group["ns_steps"], group["eps"], self.dtype
                if stacked.device.type == "cpu" and shape.numel() > LARGE:
                    updates = torch.stack([orthogonal(matrix, *options) for matrix in stacked])
                else:
                    updates = orthogonal(stacked, *options)
                sizes = [len(matrices) for _, matrices in same_shape]
                for (p, _), update in zip(same_shape, updates.split(sizes), strict=True):
                    p.add_(
                        unless_skipped(update.flatten(0, 1), 0.0),
                        alpha=-group["lr"] * 0.2 * max(shape) ** 0.5,
                    )


def orthogonal(
    matrices: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float, dtype: torch.dtype
) -> Tensor:  # (A, B) or (n, A, B) -> the same shape, of this dtype
    """Bring the singular values of each matrix U S Vᵀ near 1 by Newton-Schulz iterations of 5th order."""
    a, b, c = coefficients
    x = (matrices / matrices.norm(dim=(-2, -1), keepdim=True).clamp(min=eps)).to(dtype)
    tall = x.shape[-2] > x.shape[-1]
    add_product = torch.addmm if x.dim() == 2 else torch.baddbmm  # β·first + α·second·third
    for _ in range(steps):  # x ← a·x + (b·G + c·G²) x, where G = x xᵀ; for a tall x, from the other side
        gram = x.mT @ x if tall else x @ x.mT
        factor = add_product(gram, gram, gram, beta=b, alpha=c)
        x = add_product(x, x, factor, beta=a) if tall else add_product(x, factor, x, beta=a)
    return x
