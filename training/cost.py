"""How long a run will take: the operations that it is, and how fast they go here."""

import math
import time
from typing import TYPE_CHECKING

from cli.schema import RunConfig
from data.token_files import Prepared

if TYPE_CHECKING:
    from training.device import Compute


def forward_operations(config: RunConfig, vocab_size: int) -> int:
    """Floating-point operations of a forward, for a token, roughly: two a weight, and attention's products
    (Kaplan et al. 2020, arXiv 2001.08361, section 2.1). A backward takes twice as many."""
    model = config.model
    weights = 12 * model.n_layer * model.n_embd**2 + vocab_size * model.n_embd
    return 2 * weights + 4 * model.n_layer * model.n_embd * model.block_size


def training_work(config: RunConfig, vocab_size: int) -> int:
    """Operations of all steps of a run."""
    tokens = config.train.steps * config.train.batch_size * config.model.block_size
    return 3 * forward_operations(config, vocab_size) * tokens


def work(config: RunConfig, data: Prepared) -> int:
    """Operations of a whole run, its evaluations among them."""
    model, train = config.model, config.train
    evaluations = 2 + train.steps // (train.eval_every or train.steps or 1)
    windows = min(train.eval_windows, len(data.val) // model.block_size)
    evaluated = evaluations * windows * model.block_size + len(data.val)
    vocab_size = data.tokenizer.vocab_size
    return training_work(config, vocab_size) + forward_operations(config, vocab_size) * evaluated


# Operations of training from which on a run is worth compiling. On a CPU that takes 20 to 40 seconds and then
# saves a quarter of each step: break-even is at some 100 seconds, measured on two cores with bf16; with more
# cores it is later. For a GPU it is a guess, as none was at hand: some 2,000 steps of nanoGPT's recipe.
WORTH_COMPILING = {"cpu": 2e13, "cuda": 2e15}


def worth_compiling(config: RunConfig, vocab_size: int, device: str) -> bool:
    """What ``compile`` means for a run on that type of device: ``auto`` is by the length of training alone,
    never by timing or by how often it is looked at, as compiled and uncompiled runs differ in their last
    digits."""
    if config.compile == "auto":
        return training_work(config, vocab_size) >= WORTH_COMPILING.get(device, math.inf)
    return config.compile


def seconds_per_operation(config: RunConfig, data: Prepared) -> float:
    """Measured on one micro-batch of the run, uncompiled, forward and backward, with its threads. Raises
    ConfigError."""
    from training import device

    compute = device.choose(config.device, config.precision)
    device.set_switches(compute, config.train.threads)
    batches = config.train.steps * config.train.grad_accum
    # besides: the update, clipping, logging
    seconds = 1.15 * batches * seconds_a_batch(config, data.tokenizer.vocab_size, compute)
    compute.forget()
    return seconds / work(config, data)


def seconds_a_batch(config: RunConfig, vocab_size: int, compute: "Compute") -> float:
    """Of a micro-batch, the least of three."""
    import torch

    from training.dry_run import rehearse, rehearsed
    from training.evaluation import Net, cross_entropy

    shape = config.train.batch_size // config.train.grad_accum, config.model.block_size
    idx = torch.zeros(shape, dtype=torch.long, device=compute.device)

    def loss_of(net: Net) -> torch.Tensor:
        with compute.autocast():
            return cross_entropy(net, idx, idx)

    model = rehearsed(config, vocab_size, compute, loss_of).model
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        rehearse(model, lambda: loss_of(model))
        compute.synchronize()
        seconds.append(time.perf_counter() - start)
    return min(seconds)
