"""Several processes that train one model together (DDP, Li et al. 2020, arXiv 2006.15704), started by
torchrun:

    torchrun --nproc_per_node=4 train.py norm=layernorm placement=pre

Each rank draws the whole batch of a step and trains on its share. So the result is that of a single process,
except for dropout masks, the order of sums, and norms that do not share their statistics between ranks. Only
rank 0 writes to the run's folder and the terminal. A single process does not use torch.distributed.
"""

import itertools
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from data.errors import ConfigError, UserError

if TYPE_CHECKING:
    from torch import Tensor, nn

T = TypeVar("T")
VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# Words in a backend's errors when another rank has ended; torch has no common error type for this.
LOST = re.compile(
    "gloo|connection (was likely )?(closed|reset)|broken pipe|remote process exited", re.IGNORECASE
)


def world_size() -> int:
    """Return how many processes torchrun started; 1 without torchrun."""
    return int(os.environ["WORLD_SIZE"]) if all(map(os.environ.get, VARIABLES)) else 1


class Ranks:
    """This process and the others that train with it: the ranks. All ranks make the same calls in the same
    order.

    Attributes:
        rank, count: this rank's number, and the number of ranks.
        first: whether this is rank 0, which alone writes to disk and to the terminal.
    """

    def __init__(self, rank: int = 0, count: int = 1, store: Any = None) -> None:
        self.rank, self.count, self.first = rank, count, rank == 0
        self.store = store  # the key-value store of torchrun's processes
        self.calls = 0

    def share(self, rows: int, start: int = 0) -> slice:
        """Return this rank's part of ``rows`` rows from ``start`` on. Raises ConfigError if the ranks cannot
        have equal parts."""
        if rows % self.count:
            raise ConfigError(
                f"train.batch_size: a micro-batch of {rows} rows cannot be shared by {self.count} ranks; "
                f"make train.batch_size / train.grad_accum a multiple of {self.count}"
            )
        rows //= self.count
        return slice(start + self.rank * rows, start + (self.rank + 1) * rows)

    def rounds(self, items: Iterable[T]) -> Iterator[list[T]]:
        """Yield the items ``count`` at a time, one for each rank; the last list may be shorter."""
        iterator = iter(items)
        while batch := [*itertools.islice(iterator, self.count)]:
            yield batch

    def sum(self, tensor: "Tensor") -> "Tensor":
        """Sum ``tensor`` over the ranks, in place, and return it."""
        if self.count > 1:
            import torch.distributed as dist

            dist.all_reduce(tensor)
        return tensor

    def mean(self, tensor: "Tensor") -> "Tensor":
        """Average ``tensor`` over the ranks, in place, and return it."""
        return self.sum(tensor).div_(self.count) if self.count > 1 else tensor

    def max(self, number: int) -> int:
        """Return the largest of the ranks' numbers."""
        if self.count == 1:
            return number
        import torch
        import torch.distributed as dist

        numbers = torch.tensor(number)
        dist.all_reduce(numbers, dist.ReduceOp.MAX)
        return int(numbers)

    def broadcast(self, value: Any = None) -> Any:
        """Return rank 0's value, which is plain data. Every rank waits for rank 0."""
        if self.count == 1:
            return value
        return self.first_found(json.dumps(value) if self.first else None, json.loads)

    def first_found(self, value: str | None, read: Any = str) -> Any:
        """Return the value of the first rank that has one, converted by ``read``."""
        if self.count == 1:
            return value
        self.calls += 1
        self.store.set(f"{self.calls}/{self.rank}", value or "")
        values = (self.store.get(f"{self.calls}/{rank}").decode() for rank in range(self.count))
        return next((read(text) for text in values if text), None)


def wrap(model: "nn.Module", ranks: Ranks) -> Any:
    """Return the net that a step calls, tokens (B, T) -> logits (B, T, V): the model. If there are several
    ranks, it is wrapped in DDP, whose backward averages the gradients over the ranks."""
    if ranks.count == 1:
        return model
    from torch.nn.parallel import DistributedDataParallel

    # DDP begins each step with rank 0's buffers on all ranks. Evaluations and checkpoints have rank 0's
    # buffers, too, so neither an evaluation nor a resume changes training. gradient_as_bucket_view: the
    # gradient itself is sent, not a copy.
    return DistributedDataParallel(model, gradient_as_bucket_view=True)


def broadcast_buffers(ranks: Ranks, model: "nn.Module") -> None:
    """Broadcast rank 0's buffers, as a norm may keep statistics of its own rank's batches only."""
    if ranks.count > 1:
        import torch.distributed as dist

        for buffer in model.buffers():
            dist.broadcast(buffer, 0)


@contextmanager
def process_group(device: str) -> Iterator[Ranks]:
    """Context manager: join the ranks.

    Raises:
        ConfigError: ``device`` is a single GPU, or there are fewer GPUs than ranks.
        UserError: another rank has ended.
    """
    if world_size() == 1:
        yield Ranks()
        return
    import torch
    import torch.distributed as dist
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # as documented
    from torch.distributed.rendezvous import rendezvous

    if ":" in device or (device != "cpu" and torch.backends.mps.is_available()):
        raise ConfigError(f"device: {device} is one GPU for {world_size()} ranks; give device=cuda or cpu")
    rank, local = int(os.environ["RANK"]), int(os.environ.get("LOCAL_RANK", os.environ["RANK"]))
    gpu = device in ("auto", "cuda") and torch.cuda.is_available()
    if gpu:
        local_count, gpus = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), torch.cuda.device_count()
        if local_count > gpus:
            raise ConfigError(f"device: {local_count} ranks need a GPU each, not {gpus}; start fewer ranks")
        torch.cuda.set_device(local)
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # torchrun restarts ranks with the same store
    store = PrefixStore(f"attempt {attempt}", next(iter(rendezvous("env://")))[0])
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if gpu else "gloo", store=store, rank=rank, world_size=world_size()
    )
    if rank:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 open until the end
    try:
        yield Ranks(rank, world_size(), PrefixStore("normgpt", store))
    except RuntimeError as error:
        if not LOST.search(str(error)):
            raise
        raise UserError(
            "another rank has ended, with an error of its own; the same command resumes the run"
        ) from error
    dist.barrier()
    dist.destroy_process_group()
