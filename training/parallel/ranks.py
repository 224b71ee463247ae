"""The processes that train one model together, the ranks, as each of them sees them.

All ranks do the same steps: what one of them alone knows, a signal or the step to resume from, is broadcast,
so no rank waits for another that has gone elsewhere. A single process uses nothing of torch.distributed.
"""

import itertools
import re
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

from system.errors import ConfigError, LostRankError
from system.launch import world_size
from training.parallel.store import RankStore

if TYPE_CHECKING:
    from torch import Tensor, nn

T = TypeVar("T")


class Ranks:
    """This process among those that train together.

    Attributes:
        rank, count: its number, from 0, and how many there are.
        first: whether this is rank 0, which alone writes to disk and to the terminal.
        store: through which the ranks of several processes share plain values.
    """

    def __init__(self, rank: int = 0, count: int = 1, local: int = 0, store: Any = None) -> None:
        self.rank, self.count, self.first = rank, count, rank == 0
        self.store = RankStore(store, rank, count, local)

    def share(self, rows: int, start: int = 0) -> slice:
        """Return this rank's part of the ``rows`` rows from ``start`` on.

        Raises:
            ConfigError: the ranks cannot have equal shares.
        """
        if rows % self.count:
            raise ConfigError(
                f"train.batch_size: a micro-batch of {rows} rows cannot be shared by {self.count} ranks; "
                "make train.batch_size / train.grad_accum a multiple of them"
            )
        rows //= self.count
        return slice(start + self.rank * rows, start + (self.rank + 1) * rows)

    def rounds(self, items: Iterable[T]) -> Iterator[list[T]]:
        """Yield the items ``count`` at a time, one for each rank; the last time perhaps fewer."""
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
        return value if self.count == 1 else self.store.broadcast(value)

    def first_found(self, value: str | None) -> str | None:
        """Return the value of the lowest rank that has one."""
        return value if self.count == 1 else self.store.first_found(value)

    def local_first(self) -> AbstractContextManager[None]:
        """Let the first rank of each machine run the block before that machine's other ranks do."""
        return nullcontext() if self.count == 1 else self.store.local_first()


def broadcast_buffers(ranks: Ranks, model: "nn.Module") -> None:
    """Give all ranks the buffers of rank 0: a norm may keep statistics of its own rank's batches."""
    if ranks.count > 1:
        import torch.distributed as dist

        for buffer in model.buffers():
            dist.broadcast(buffer, 0)


# What a backend says when another rank has ended; torch has no common error for it.
LOST = re.compile(
    "gloo|connection closed|connection was likely closed|connection reset|broken pipe"  # gloo and the store
    "|remote process exited"  # nccl
    "|recvValue",  # the store
    re.IGNORECASE,
)


@contextmanager
def lost_ranks_explained() -> Iterator[None]:
    """Turn the errors that torch raises when another rank has ended into LostRankError."""
    try:
        yield
    except RuntimeError as error:
        if world_size() == 1 or not LOST.search(str(error)):
            raise
        raise LostRankError from error
