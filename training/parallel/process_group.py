"""Several processes that train one model, as torchrun starts them, from their start to their end.

    torchrun --nproc_per_node=4 train.py norm=layernorm placement=pre

Each draws the whole batch of a step and trains on its share of it, so the run is that of one process on the
same batch, but for the order of sums. The first rank alone has the run's folder, the log and the terminal.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from system.errors import ConfigError
from system.launch import count, nowhere, rank
from system.os_compat import SIGNALS
from training.parallel.ranks import Ranks, lost


@contextmanager
def together(device: str) -> Iterator[Ranks]:
    """The ranks, until the end of ``with``: however one ends, all do, and one of them says why.

    Raises:
        ConfigError: there are fewer GPUs than ranks.
    """
    if count() == 1:
        yield Ranks()
        return
    import torch
    import torch.distributed as dist
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # as documented
    from torch.distributed.rendezvous import rendezvous

    if ":" in device:
        raise ConfigError(f"device: {device} is one GPU for {count()} ranks; device=cuda gives each its own")
    if device != "cpu" and torch.backends.mps.is_available():
        raise ConfigError(f"device: a Mac's GPU is one for {count()} ranks; give device=cpu")
    local = int(os.environ.get("LOCAL_RANK", rank()))
    gpu = device in ("auto", "cuda") and torch.cuda.is_available()
    if gpu:
        here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        if here > torch.cuda.device_count():
            raise ConfigError(f"device: {here} ranks here for {torch.cuda.device_count()} GPUs; start fewer")
        torch.cuda.set_device(local)
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # torchrun's store outlives it
    store = PrefixStore(f"attempt {attempt}", next(iter(rendezvous("env://")))[0])
    backend = "cpu:gloo,cuda:nccl" if gpu else "gloo"
    dist.init_process_group(backend, store=store, rank=rank(), world_size=count())
    ranks = Ranks(rank(), count(), local, PrefixStore("normgpt", store))
    try:
        with lost():
            yield ranks
    except BaseException as error:
        if isinstance(error, Exception) or error.__cause__:
            for number in SIGNALS:  # torchrun ends all as soon as one has: this one has first to say why
                signal.signal(number, signal.SIG_IGN)
            sys.stderr = sys.__stderr__ if ranks.speaks() else nowhere()
        raise
    dist.barrier()
    dist.destroy_process_group()
