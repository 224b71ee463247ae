"""AdamW, what it decays, and its learning rate as a pure function of the step."""

import math

import torch
from torch import nn

from training.config import OptimConfig, ScheduleConfig


def new_optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.AdamW:
    """AdamW (Loshchilov & Hutter 2019). Matrices decay; vectors, as biases and a norm's weight, do not."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        fused=True,
    )


SHAPES = {  # t goes from 0 at the end of warm-up to 1 at the last step; each gives 1 at 0
    "cosine": lambda t: 0.5 * (1 + math.cos(math.pi * t)),
    "linear": lambda t: 1 - t,
    "constant": lambda t: 1.0,
}


def rate_scale(step: int, steps: int, schedule: ScheduleConfig) -> float:
    """Factor on the learning rate of update ``step`` < ``steps``: up to 1, then down to final_fraction."""
    warmup = round(schedule.warmup_fraction * steps)
    if step < warmup:
        return (step + 1) / (warmup + 1)
    t = (step - warmup) / max(1, steps - warmup)
    return schedule.final_fraction + (1 - schedule.final_fraction) * SHAPES[schedule.shape](t)
