"""Estimate how long a run will take: its operations, and how fast this machine does them."""

import math
import time
from functools import partial

from cli import operations
from cli.schema import RunConfig

FORWARDS_A_BATCH = 3  # the time of a micro-batch, with its backward, in forwards
CERTIFICATES_SHARE = 0.03  # of the training time, for both certificates, without tests of a compiled form
LARGEST_SHARE = 0.1  # up to this share if CERTIFICATES_SHARE is too small to test each position once
LEAST_ROUNDS = 32  # so many forwards may test each position once even if LARGEST_SHARE is less
FIXED_FORWARDS = 32  # the time of a certificate without the tests of positions, in forwards


def operations_per_step(config: RunConfig, vocab_size: int) -> int:
    """Return the approximate number of floating-point operations of a step of a run."""
    model = config.model
    each = operations.per_token(model.n_layer, model.n_embd, model.block_size, vocab_size)
    return each * config.train.batch_size * model.block_size


def training_operations(config: RunConfig, vocab_size: int) -> int:
    """Return the approximate number of floating-point operations of all steps of a run."""
    return config.train.steps * operations_per_step(config, vocab_size)


def operations_of_run(config: RunConfig, vocab_size: int, val_tokens: int) -> float:
    """Return the approximate number of floating-point operations of a run: training, the evaluations on
    ``val_tokens`` tokens of the validation split and on its fixed windows, and the certificates."""
    train, block_size = config.train, config.model.block_size
    evaluations = 1 + math.ceil(train.steps / train.eval_every) if train.eval_every else 1
    evaluated = val_tokens + evaluations * min(train.eval_windows * block_size, val_tokens)
    forwards = evaluated / (train.batch_size * block_size)  # in forwards of a batch, as in the next line
    forwards += 2 * (FIXED_FORWARDS + 2 * certificate_rounds(config)) / train.grad_accum
    each = operations_per_step(config, vocab_size)
    return training_operations(config, vocab_size) + forwards / FORWARDS_A_BATCH * each


def certificate_rounds(config: RunConfig, ranks: int = 1) -> int:
    """Return the number of forwards, in each mode, in which a certificate tests positions. Each is of one
    micro-batch of a rank, and tests one position of each row."""
    train = config.train
    batches = train.steps * train.grad_accum
    once = math.ceil((config.model.block_size - 1) * train.grad_accum * ranks / train.batch_size)

    def within(share: float) -> int:
        forwards = share / 2 * FORWARDS_A_BATCH * batches  # of one of two certificates
        return max(0, round((forwards - FIXED_FORWARDS) / 2))

    return max(within(CERTIFICATES_SHARE), min(once, max(LEAST_ROUNDS, within(LARGEST_SHARE))))


# A run of at least this many operations is worth compiling. On two cores, compiling 4 layers takes 20 to 40
# seconds and then saves a fifth of each step in bf16, about a tenth in fp32. So many operations save 2
# to 6 times the cost: docs/performance.md. The number for a GPU is a guess.
WORTH_COMPILING = {("cpu", "bf16"): 5e13, ("cpu", "fp32"): 1e14}
WORTH_COMPILING |= {("cuda", "bf16"): 2e15, ("cuda", "fp32"): 2e15}


def worth_compiling(config: RunConfig, vocab_size: int, device: str, precision: str, threads: int) -> bool:
    """Return whether to compile a run on this type of device, in this precision, with so many threads of all
    ranks together. ``auto`` depends on these, on the model and on the length of training, never on timing or
    on how often the run is evaluated, as compiled and uncompiled runs differ in their last digits."""
    if config.compile != "auto":
        return config.compile
    enough = WORTH_COMPILING.get((device, precision), math.inf)
    if device == "cpu":
        enough *= threads / 2  # more threads shorten the steps, but hardly the compiling
        # 12 layers take 1.6 times as long to compile as 4 (measured in fp32)
        enough *= (8 + config.model.n_layer) / 12
    return training_operations(config, vocab_size) >= enough


def seconds_per_operation(config: RunConfig, vocab_size: int, threads: int) -> float:
    """Return the seconds per operation of the fastest of three uncompiled forwards and backwards of a
    micro-batch, with so many threads. Raises ConfigError."""
    import torch

    from training import device
    from training.loss import Loss
    from training.rehearsal import build_and_try, rehearse

    compute = device.choose(config.device, config.precision)
    device.set_switches(compute, threads, config.deterministic)
    shape = config.train.batch_size // config.train.grad_accum, config.model.block_size
    idx = torch.zeros(shape, dtype=torch.long, device=compute.device)
    loss_of = partial(Loss(compute), x=idx, y=idx)
    model = build_and_try(config, vocab_size, compute, loss_of).model
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        rehearse(model, partial(loss_of, model))
        compute.synchronize()
        seconds.append(time.perf_counter() - start)
    del model
    compute.release()
    # plus 15 % for the update, clipping and logging
    return 1.15 * min(seconds) * config.train.grad_accum / operations_per_step(config, vocab_size)
