"""How long a run will take: the operations that it is, and how fast they go here."""

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


def seconds_per_operation(config: RunConfig, data: Prepared) -> float:
    """Measured on one micro-batch of the run, forward and backward, with its threads. Raises ConfigError."""
    import torch
    import torch.nn.functional as F

    from training import device
    from training.evaluation import Net
    from training.rehearsal import rehearse, rehearsed

    compute = device.choose(config.device, config.precision)
    device.set_switches(compute, config.train.threads)
    rows, T = config.train.batch_size // config.train.grad_accum, config.model.block_size
    idx = torch.zeros(rows, T, dtype=torch.long, device=compute.device)

    def loss_of(net: Net) -> torch.Tensor:
        with compute.autocast():
            logits = net(idx)
        return F.cross_entropy(logits.flatten(0, 1).float(), idx.flatten())

    eager = config.model_copy(update={"compile": False})
    model, net = rehearsed(eager, data.tokenizer.vocab_size, compute, loss_of)
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        rehearse(model, net, loss_of)
        compute.synchronize()
        seconds.append(time.perf_counter() - start)
    steps = config.train.steps * config.train.grad_accum
    return 1.15 * min(seconds) * steps / work(config, data)  # besides: the update, clipping, logging
