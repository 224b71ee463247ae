"""The processes that train one model together, the ranks, as each of them sees them.

All do the same steps: what one of them alone knows, a signal or where a run goes on, all agree on, so none
waits for another that has gone elsewhere. Where there is one process, nothing of torch.distributed is used.
"""

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from system.errors import ConfigError, LostRankError
from system.launch import count

if TYPE_CHECKING:
    from torch import Tensor, nn

T = TypeVar("T")
ASKED = 0.05  # seconds between two looks at what another rank is to say


class Ranks:
    """This process among those that train together.

    Attributes:
        rank, count: its number, from 0, and how many there are.
        local: its number on its machine.
    """

    def __init__(self, rank: int = 0, count: int = 1, local: int = 0, store: Any = None) -> None:
        self.rank, self.count, self.local, self.store = rank, count, local, store
        self.said = 0

    @property
    def first(self) -> bool:
        return self.rank == 0

    def check_rows(self, micro_rows: int) -> None:
        """Whether ranks can have equal shares of a micro-batch. Raises ConfigError."""
        if micro_rows % self.count:
            raise ConfigError(
                f"train.batch_size: a micro-batch of {micro_rows} rows cannot be shared by {self.count} "
                "ranks; make train.batch_size / train.grad_accum a multiple of them"
            )

    def share(self, rows: int, start: int = 0) -> slice:
        """This rank's part of the ``rows`` rows from ``start`` on."""
        mine = rows // self.count
        return slice(start + self.rank * mine, start + (self.rank + 1) * mine)

    def turns(self, some: Iterable[T]) -> Iterator[list[T]]:
        """The items, ``count`` at a time: one for each rank, in the last turn perhaps not for all."""
        turn: list[T] = []
        for item in some:
            turn.append(item)
            if len(turn) == self.count:
                yield turn
                turn = []
        if turn:
            yield turn

    def sum(self, mine: "Tensor") -> "Tensor":
        """The sum over ranks, in the place of ``mine``."""
        if self.count > 1:
            import torch.distributed as dist

            dist.all_reduce(mine)
        return mine

    def mean(self, mine: "Tensor") -> "Tensor":
        """The mean over ranks, in the place of ``mine``."""
        return self.sum(mine).div_(self.count) if self.count > 1 else mine

    def largest(self, number: int) -> int:
        """Of the numbers of all ranks."""
        if self.count == 1:
            return number
        import torch
        import torch.distributed as dist

        everyones = torch.tensor(number)
        dist.all_reduce(everyones, dist.ReduceOp.MAX)
        return int(everyones)

    def told(self, value: Any = None) -> Any:
        """The first rank's value, plain data, for all."""
        if self.count == 1:
            return value
        self.said += 1
        key = f"told/{self.said}"
        if self.first:
            self.store.set(key, json.dumps(value))
            return value
        self.wait_for(key)
        return json.loads(self.store.get(key))

    def first_of(self, value: str | None) -> str | None:
        """What the first rank that has found something has found."""
        if self.count == 1:
            return value
        self.said += 1
        self.store.set(f"found/{self.said}/{self.rank}", value or "")
        for rank in range(self.count):
            self.wait_for(key := f"found/{self.said}/{rank}")
            if found := self.store.get(key).decode():
                return str(found)
        return None

    def wait_for(self, key: str) -> None:
        """Until the store has it, and so that a signal, or another rank's error, is heard meanwhile."""
        while not self.store.check([key]):
            if self.store.add("errors", 0):
                raise LostRankError
            time.sleep(ASKED)

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """Inside is what has to be done once on each machine: its first rank is through before the others
        begin."""
        if self.count == 1:
            yield
            return
        self.said += 1
        key = f"through/{self.said}/{self.rank - self.local}"
        if self.local:
            self.wait_for(key)
        yield
        self.store.set(key, "")

    def same_buffers(self, model: "nn.Module") -> None:
        """Give all ranks the first one's: a norm may keep statistics of its own rank's batches."""
        if self.count > 1:
            import torch.distributed as dist

            for buffer in model.buffers():
                dist.broadcast(buffer, 0)

    def speaks(self) -> bool:
        """Whether this rank is to tell of an error: it is the first that has met one."""
        try:
            speaks = self.store.add("errors", 1) == 1
            deadline = time.monotonic() + 1
            while self.store.add("errors", 0) < self.count and time.monotonic() < deadline:
                time.sleep(ASKED)  # the store may be the first rank's, and end with it
            return bool(speaks)
        except RuntimeError:  # it has ended
            return True


# What gloo, nccl and the store say where a rank has ended.
LOSS = (
    *("gloo", "onnection closed", "onnection was likely closed", "onnection reset", "roken pipe"),
    *("remote process exited", "recvValue"),
)


@contextmanager
def lost() -> Iterator[None]:
    """Inside, what torch raises where another rank has ended is LostRankError."""
    try:
        yield
    except RuntimeError as error:
        if count() == 1 or not any(words in str(error) for words in LOSS):
            raise
        raise LostRankError from error
