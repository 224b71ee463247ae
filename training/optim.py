"""AdamW and Muon, what they decay, and their learning rate as a pure function of the step."""

import math
from inspect import unwrap

import torch

from model import GPT
from model.branches import Linear
from training.config import MuonConfig, OptimConfig, ScheduleConfig
from training.muon import Muon
from training.uncompiled import Uncompiled


class AdamW(Uncompiled, torch.optim.AdamW):
    step = torch.no_grad()(unwrap(torch.optim.AdamW.step))


def new_optimizers(model: GPT, config: OptimConfig) -> list[torch.optim.Optimizer]:
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
    optimizers: list[torch.optim.Optimizer] = [
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
