"""How long a run will take: the operations that it is, and how fast they go here."""

import math
import time

from data.prepared import Prepared
from training.config import RunConfig


def work(config: RunConfig, data: Prepared) -> float:
    """Floating-point operations of a run, roughly: two a weight and token forward, twice as many backward,
    and attention's products (Kaplan et al. 2020, arXiv 2001.08361, section 2.1)."""
    model, train = config.model, config.train
    weights = 12 * model.n_layer * model.n_embd**2 + data.tokenizer.vocab_size * model.n_embd
    forward = 2 * weights + 4 * model.n_layer * model.n_embd * model.block_size  # operations a token
    evaluations = 2 + train.steps // (train.eval_every or train.steps or 1)
    windows = min(train.eval_windows, len(data.val) // model.block_size)
    evaluated = evaluations * windows * model.block_size + len(data.val)
    return forward * (3 * train.steps * train.batch_size * model.block_size + evaluated)


# Operations from which on a run is worth compiling. On a CPU that takes 20 to 40 seconds and then saves a
# quarter of each step: break-even is at some 100 seconds (two cores with bf16). On a GPU small models are
# bound by launches, which compiling spares: a guess, no GPU was at hand to measure it.
WORTH_COMPILING = {"cpu": 2e13, "cuda": 2e13}


def worth_compiling(config: RunConfig, data: Prepared, device: str) -> bool:
    """What ``compile`` means for a run on that type of device: ``auto`` is by its length alone, never by
    timing, as compiled and uncompiled runs differ in their last digits."""
    if config.compile == "auto":
        return work(config, data) >= WORTH_COMPILING.get(device, math.inf)
    return config.compile


def seconds_per_operation(config: RunConfig, data: Prepared) -> float:
    """Measured on one micro-batch of the run, forward and backward, with its threads. Raises ConfigError."""
    import torch

    from training import device
    from training.evaluation import Net, cross_entropy
    from training.rehearsal import rehearse, rehearsed

    compute = device.choose(config.device, config.precision)
    device.set_switches(compute, config.train.threads)
    rows, T = config.train.batch_size // config.train.grad_accum, config.model.block_size
    idx = torch.zeros(rows, T, dtype=torch.long, device=compute.device)

    def loss_of(net: Net) -> torch.Tensor:
        with compute.autocast():
            return cross_entropy(net, idx, idx)

    model = rehearsed(config, data.tokenizer.vocab_size, compute, loss_of)
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        rehearse(model, lambda: loss_of(model))
        compute.synchronize()
        seconds.append(time.perf_counter() - start)
    steps = config.train.steps * config.train.grad_accum
    return 1.15 * min(seconds) * steps / work(config, data)  # besides: the update, clipping, logging
