"""AdamW and Muon, what they decay, their rate as a pure function of the step, and the update itself."""

import math
from collections.abc import Sequence
from inspect import unwrap

import torch
from torch import Tensor

from cli.schema import MuonConfig, OptimConfig, ScheduleConfig
from model import GPT
from model.linear import Linear
from training.muon import Muon
from training.optimizer_base import Uncompiled
from training.parallel.strategies import all_of


class AdamW(Uncompiled, torch.optim.AdamW):
    found_inf: Tensor | None = None  # where it is 1, a step changes nothing: torch's fused ones ask for it
    keeps = ("step", "exp_avg", "exp_avg_sq")  # of each parameter
    step = torch.no_grad()(unwrap(torch.optim.AdamW.step))


def new_optimizers(model: GPT, config: OptimConfig) -> list[AdamW | Muon]:
    """AdamW (Loshchilov & Hutter 2019) for every parameter; or Muon (Jordan 2024) for the matrices of the
    blocks and AdamW for the rest.

    Matrices decay; vectors, as biases and a norm's weight, do not. Muon's update is scaled to the root mean
    square of AdamW's, so one rate and one decay fit both.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    hidden = [p for p in model.blocks.parameters() if p.requires_grad and p.dim() == 2]
    muons = hidden if isinstance(config, MuonConfig) else []
    chosen = set(muons)
    others = [p for p in parameters if p not in chosen]
    matrices = {"params": [p for p in others if p.dim() >= 2], "weight_decay": config.weight_decay}
    vectors = {"params": [p for p in others if p.dim() < 2], "weight_decay": 0.0}
    optimizers: list[AdamW | Muon] = [
        AdamW(
            [group for group in (matrices, vectors) if group["params"]],
            lr=config.learning_rate,
            betas=(config.beta1, config.beta2),
            eps=config.eps,
            fused=True,
        )
    ]
    if isinstance(config, MuonConfig):
        side_by_side = {m.weight: len(m.stds) for m in model.blocks.modules() if isinstance(m, Linear)}
        optimizers.append(
            Muon(muons, config.learning_rate, config.weight_decay, config.momentum, side_by_side)
        )
    return optimizers


class Updates:
    """Updates by all optimizers, as long as loss and gradient are finite. From the first that is not on,
    neither parameters nor moments change any more, so that it can be looked into.

    On CUDA this is decided on the device, and nothing waits for it.

    Args:
        parameters: all that have gradients.
        largest_norm: to which the gradient is cut down; may be infinite.

    Attributes:
        missed: how many updates were not made, 0-d.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        optimizers: Sequence[AdamW | Muon],
        largest_norm: float,
    ) -> None:
        self.parameters, self.optimizers, self.largest_norm = parameters, optimizers, largest_norm
        device = parameters[0].device
        self.missed = torch.tensor(0, device=device)
        self.sound = torch.tensor(True, device=device)
        # A CPU is asked at no cost; the optimizers of other devices than CUDA's, and of shards, take no
        # found_inf.
        self.on_device = device.type == "cuda" and not hasattr(parameters[0], "full_tensor")

    def step(self, loss: Tensor, rate: float) -> Tensor:
        """One update by the gradients of ``loss``, which are then gone. Returns their norm, 0-d, before it
        was cut down."""
        norm = all_of(torch.nn.utils.clip_grad_norm_(self.parameters, self.largest_norm))
        self.sound &= loss.isfinite() & norm.isfinite()
        self.missed += ~self.sound
        found_inf = (~self.sound).float() if self.on_device else None
        for optimizer in self.optimizers:
            optimizer.found_inf = found_inf
            for options in optimizer.param_groups:
                options["lr"] = rate
            if self.on_device or self.sound:
                optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return norm

    def known_to_have_ended(self) -> bool:
        """Whether nothing changes any more, where to ask costs nothing."""
        return not self.on_device and not self.sound


SHAPES = {  # t goes from 0 at the end of warm-up to 1 at the last step; each gives 1 at 0
    "cosine": lambda t: 0.5 * (1 + math.cos(math.pi * t)),
    "linear": lambda t: 1 - t,
    "constant": lambda t: 1.0,
}


def warmup_steps(steps: int, schedule: ScheduleConfig) -> int:
    return round(schedule.warmup_fraction * steps)


def rate_scale(step: int, steps: int, schedule: ScheduleConfig) -> float:
    """Factor on the learning rate of update ``step`` < ``steps``: up to 1, then down to final_fraction."""
    warmup = warmup_steps(steps, schedule)
    if step < warmup:
        return (step + 1) / (warmup + 1)
    t = (step - warmup) / max(1, steps - warmup)
    return schedule.final_fraction + (1 - schedule.final_fraction) * SHAPES[schedule.shape](t)
