"""Build AdamW and Muon, and update parameters by them. The learning rate comes from training/schedule.py."""

import math
from inspect import unwrap

import torch
from torch import Tensor

from cli.schema import MuonConfig, OptimConfig
from model import GPT
from model.linear import Linear
from training.muon import Muon
from training.optimizer_base import BaseOptimizer
from training.parallel.strategies import full_tensor


class AdamW(BaseOptimizer, torch.optim.AdamW):
    state_keys = ("step", "exp_avg", "exp_avg_sq")  # per parameter, in checkpoints
    step = torch.no_grad()(unwrap(torch.optim.AdamW.step))


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
        # Whether the optimizer itself skips a non-finite update, by found_inf, so that nothing waits for the
        # GPU. Only CUDA's optimizers of unsharded tensors do; on a CPU, reading the number costs nothing.
        self.skips_on_device = device.type == "cuda" and not hasattr(self.parameters[0], "full_tensor")

    def clip(self) -> Tensor:
        """Clip the gradient's norm. Returns the norm before clipping, 0-d."""
        return full_tensor(torch.nn.utils.clip_grad_norm_(self.parameters, self.max_grad_norm))

    def update(self, learning_rate: float, loss: Tensor, grad_norm: Tensor) -> None:
        """Update the parameters by their gradients, unless the loss or the gradient's norm is non-finite, or
        was non-finite at an earlier step."""
        finite = loss.isfinite() & grad_norm.isfinite() & (self.skipped == 0)
        self.skipped += ~finite
        found_inf = (~finite).float() if self.skips_on_device else None
        for optimizer in self.optimizers:
            optimizer.found_inf = found_inf  # which its step() reads
            for options in optimizer.param_groups:
                options["lr"] = learning_rate
            if self.skips_on_device or finite:
                optimizer.step()

    def zero_grad(self) -> None:
        """Drop the gradients."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)

    def known_to_skip(self) -> bool:
        """Return whether updates are known to be skipped; False where only the device knows."""
        return not self.skips_on_device and bool(self.skipped)
