"""AdamW and Muon; an update that is not finite is skipped. The learning rate comes from training/schedule.py.

Each optimizer has, besides ``step``:
    found_inf    0-d tensor or None, set before each step; if it is 1 (on CUDA), ``step`` must change nothing
    state_keys   names of the state that it keeps per parameter: tensors of the parameter's shape, and the
                 number "step"; a restored checkpoint is checked by these names
"""

import math
from collections import defaultdict
from collections.abc import Iterable
from inspect import unwrap
from typing import Any, ClassVar

import torch
from torch import Tensor

from cli.schema import MuonConfig, OptimConfig
from model import GPT
from model.layers import Linear
from training.device import fast_bf16

LARGE = 2**16  # elements; a CPU is faster if it takes larger matrices one at a time


class BaseOptimizer(torch.optim.Optimizer):
    """torch's methods without their ``torch._dynamo`` wrappers. The first call of a wrapper imports the
    compiler, which would take a third of the time in which an uncompiled run starts."""

    found_inf: Tensor | None = None
    state_keys: ClassVar[tuple[str, ...]]
    add_param_group = unwrap(torch.optim.Optimizer.add_param_group)
    load_state_dict = unwrap(torch.optim.Optimizer.load_state_dict)
    state_dict = unwrap(torch.optim.Optimizer.state_dict)
    zero_grad = unwrap(torch.optim.Optimizer.zero_grad)


class AdamW(BaseOptimizer, torch.optim.AdamW):
    state_keys = ("step", "exp_avg", "exp_avg_sq")  # per parameter, in checkpoints
    step = torch.no_grad()(unwrap(torch.optim.AdamW.step))


class Muon(BaseOptimizer, torch.optim.Muon):
    """Muon (Jordan 2024, https://kellerjordan.github.io/posts/muon): momentum, made orthogonal.

    This is torch.optim.Muon with two changes. Matrices of one shape are orthogonalised together, as small
    models have many. A CPU that only emulates bf16 computes in fp32, as emulation takes 25 to 40 times as
    long.

    Args:
        params: matrices (A, B), or several such matrices stacked in one parameter (``parts``).
        lr: learning rate. The update of a matrix is scaled by 0.2·√max(A, B), which gives it the
            root mean square of AdamW's update (Liu et al. 2025, arXiv 2502.16982, eq. 4).
        weight_decay: decoupled, as in AdamW.
        momentum: of the gradient's running mean; the update looks one step ahead (Nesterov).
        parts: how many matrices a parameter holds, if several: for example queries, keys and values.
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


def new_optimizers(model: GPT, config: OptimConfig) -> list[BaseOptimizer]:
    """Return AdamW (Loshchilov & Hutter 2019) for every parameter; or Muon (Jordan 2024) for the matrices of
    the blocks and AdamW for the rest.

    Matrices decay; vectors (biases, norm weights) do not. Muon's update is scaled to the root mean
    square of AdamW's, so one learning rate and one decay fit both.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    block_matrices = [p for p in model.blocks.parameters() if p.requires_grad and p.dim() == 2]
    for_muon = dict.fromkeys(block_matrices if isinstance(config, MuonConfig) else [])  # an ordered set
    for_adamw = [p for p in parameters if p not in for_muon]
    matrices = {"params": [p for p in for_adamw if p.dim() >= 2], "weight_decay": config.weight_decay}
    vectors = {"params": [p for p in for_adamw if p.dim() < 2], "weight_decay": 0.0}
    optimizers: list[BaseOptimizer] = [
        AdamW(
            [group for group in (matrices, vectors) if group["params"]],
            lr=config.learning_rate,
            betas=(config.beta1, config.beta2),
            eps=config.eps,
            fused=True,
        )
    ]
    if isinstance(config, MuonConfig):
        # a weight may hold several stacked matrices; stds has one initial std for each
        parts = {m.weight: len(m.stds) for m in model.blocks.modules() if isinstance(m, Linear)}
        optimizers.append(Muon(for_muon, config.learning_rate, config.weight_decay, config.momentum, parts))
    return optimizers


class Optimizer:
    """Updates by one or two torch optimizers, as long as loss and gradient are finite. After the first
    skipped update, neither parameters nor moments change, so that the cause can be found.

    On CUDA the device decides whether to skip, so that this process need not wait for it.

    Args:
        model: its parameters are updated.
        max_grad_norm: the gradient is clipped to this norm; 0 for no clipping.

    Attributes:
        optimizers: the torch optimizers, each with its own parameters.
        skipped: how many updates were skipped, 0-d.
    """

    def __init__(self, model: GPT, config: OptimConfig, max_grad_norm: float) -> None:
        self.parameters = [*model.parameters()]
        self.optimizers = new_optimizers(model, config)
        self.max_grad_norm = max_grad_norm or math.inf
        device = self.parameters[0].device
        self.skipped = torch.tensor(0, device=device)
        # On CUDA, the torch optimizers skip a non-finite update themselves, by found_inf, so that nothing
        # waits for the GPU. On a CPU, reading the number costs nothing.
        self.skips_on_device = device.type == "cuda"

    def clip(self) -> Tensor:
        """Clip the gradient's norm. Returns the norm before clipping, 0-d."""
        return torch.nn.utils.clip_grad_norm_(self.parameters, self.max_grad_norm)

    def update(self, learning_rate: float, loss: Tensor, grad_norm: Tensor) -> None:
        """Update the parameters by their gradients, unless the loss or the gradient's norm is non-finite, or
        was non-finite at an earlier step."""
        finite = loss.isfinite() & grad_norm.isfinite() & (self.skipped == 0)
        self.skipped += ~finite
        found_inf = (~finite).float() if self.skips_on_device else None
        for optimizer in self.optimizers:
            optimizer.found_inf = found_inf  # its step() reads this
            for options in optimizer.param_groups:
                options["lr"] = learning_rate
            if self.skips_on_device or finite:
                optimizer.step()

    def zero_grad(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)

    def skip_is_known(self) -> bool:
        """Return whether an update was skipped, as far as the CPU knows: on a GPU, always False."""
        return not self.skips_on_device and bool(self.skipped)
