"""Join the processes that torchrun starts to train one model together.

    torchrun --nproc_per_node=4 train.py norm=layernorm placement=pre

Each rank draws the whole batch of a step and trains on its share of it, so the run equals that of one process
on the same batch, except for dropout masks, the order of sums, and norms that do not share statistics. Only
rank 0 writes to the run's folder and the terminal.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from system import signals
from system.errors import ConfigError
from system.launch import devnull, rank, world_size
from system.os_compat import SIGNALS
from system.terminal import announced
from training.parallel.ranks import Ranks, lost_ranks_explained


@contextmanager
def process_group(device: str) -> Iterator[Ranks]:
    """Context manager: join the ranks. If one of them fails, all ranks end, and one prints why.

    Raises:
        ConfigError: ``device`` is a single GPU, or there are fewer GPUs than ranks.
    """
    if world_size() == 1:
        yield Ranks()
        return
    with announced("importing torch"):
        import torch
        import torch.distributed as dist
        from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # as documented
        from torch.distributed.rendezvous import rendezvous

    if ":" in device or (device != "cpu" and torch.backends.mps.is_available()):
        choices = "device=cuda, which takes a GPU for each rank, or " if torch.cuda.is_available() else ""
        raise ConfigError(f"device: {device} is one GPU for {world_size()} ranks; give {choices}device=cpu")
    local_rank = int(os.environ.get("LOCAL_RANK", rank()))
    gpu = device in ("auto", "cuda") and torch.cuda.is_available()
    if gpu:
        local_count, gpus = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), torch.cuda.device_count()
        if local_count > gpus:
            raise ConfigError(f"device: {local_count} ranks need a GPU each, not {gpus}; start fewer ranks")
        torch.cuda.set_device(local_rank)
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # torchrun's store outlives an attempt
    backend = "cpu:gloo,cuda:nccl" if gpu else "gloo"
    waiting = announced(f"rank {rank()} of {world_size()} waits for the others")
    with waiting, signals.handled(signal.SIG_DFL):  # Python's handlers do not run inside torch's waiting
        store = PrefixStore(f"attempt {attempt}", next(iter(rendezvous("env://")))[0])
        dist.init_process_group(backend, store=store, rank=rank(), world_size=world_size())
    ranks = Ranks(rank(), world_size(), local_rank, PrefixStore("normgpt", store))
    try:
        with lost_ranks_explained():
            yield ranks
    except BaseException as error:
        if isinstance(error, Exception) or error.__cause__:
            for number in SIGNALS:  # print the error first: torchrun ends all ranks once one ends
                signal.signal(number, signal.SIG_IGN)
            sys.stderr = sys.__stderr__ if ranks.claims_error() else devnull()
        raise
    dist.barrier()
    dist.destroy_process_group()
