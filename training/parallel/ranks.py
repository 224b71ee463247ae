"""The ranks: the processes that train one model together, seen from one of them.

All ranks do the same steps: what only one rank knows (a signal, the step to resume from) is broadcast, so no
rank waits for one that has taken another path. A single process does not use torch.distributed.

The backend exchanges tensors; the key-value store of torchrun's processes exchanges plain values. A rank that
waits for a key still handles signals, and notices that another rank has failed.
"""

import itertools
import json
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from system.errors import ConfigError, LostRankError
from system.launch import world_size

if TYPE_CHECKING:
    from torch import Tensor, nn

T = TypeVar("T")
POLL_SECONDS = 0.05


class Ranks:
    """This rank, among the processes that train together. All ranks make the same calls in the same order.

    Args:
        local: the rank's number on its machine.
        store: a torch.distributed.Store; None for a single process.

    Attributes:
        rank, count: this rank's number, from 0, and the number of ranks.
        first: whether this is rank 0, which alone writes to disk and to the terminal.
    """

    def __init__(self, rank: int = 0, count: int = 1, local: int = 0, store: Any = None) -> None:
        self.rank, self.count, self.first = rank, count, rank == 0
        self.local, self.store = local, store
        self.calls = 0  # calls so far, which number the keys of the store

    def share(self, rows: int, start: int = 0) -> slice:
        """Return this rank's part of the ``rows`` rows from ``start`` on.

        Raises:
            ConfigError: the ranks cannot have equal shares.
        """
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
        """Return rank 0's value, which is JSON-serialisable. Every rank waits for rank 0."""
        if self.count == 1:
            return value
        text = self.first_found(json.dumps(value) if self.first else None)
        return value if self.first else json.loads(text or "null")

    def first_found(self, value: str | None) -> str | None:
        """Return the value of the lowest rank that has one."""
        if self.count == 1:
            return value
        self.calls += 1
        self.store.set(f"found/{self.calls}/{self.rank}", value or "")
        for rank in range(self.count):
            self.wait_for(key := f"found/{self.calls}/{rank}")
            if text := self.store.get(key).decode():
                return str(text)
        return None

    @contextmanager
    def local_first(self) -> Iterator[None]:
        """Let the first rank of each machine run the block before that machine's other ranks do."""
        self.calls += 1
        key = f"done/{self.calls}/{self.rank - self.local}"
        if self.local:
            self.wait_for(key)
        yield
        if self.count > 1:
            self.store.set(key, "")

    def wait_for(self, key: str) -> None:
        """Wait until ``key`` is set. Raises LostRankError if another rank has failed."""
        while not self.store.check([key]):
            if self.store.add("errors", 0):
                raise LostRankError
            time.sleep(POLL_SECONDS)

    def claims_error(self) -> bool:
        """Return whether this rank failed first and is to print why. Waits up to 1 s until all ranks fail."""
        try:
            is_first = self.store.add("errors", 1) == 1
            deadline = time.monotonic() + 1
            while self.store.add("errors", 0) < self.count and time.monotonic() < deadline:
                time.sleep(POLL_SECONDS)  # the store ends with rank 0 if rank 0 hosts it
            return bool(is_first)
        except RuntimeError:  # the store has ended
            return True


def broadcast_buffers(ranks: Ranks, model: "nn.Module") -> None:
    """Broadcast rank 0's buffers, as a norm may keep statistics of its own rank's batches only."""
    if ranks.count > 1:
        import torch.distributed as dist

        for buffer in model.buffers():
            dist.broadcast(buffer, 0)


# Words in a backend's errors when another rank has ended; torch has no common error type for this.
LOST = re.compile(
    "gloo|connection closed|connection was likely closed|connection reset|broken pipe"  # gloo and the store
    "|remote process exited"  # nccl
    "|recvValue",  # the store
    re.IGNORECASE,
)


@contextmanager
def lost_ranks_explained() -> Iterator[None]:
    """Context manager: turn the errors that torch raises when another rank has ended into LostRankError."""
    try:
        yield
    except RuntimeError as error:
        if world_size() == 1 or not LOST.search(str(error)):
            raise
        raise LostRankError from error
