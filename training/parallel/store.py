"""The key-value store that torchrun's processes share. Plain values go through it, tensors do not.

A rank that waits for a key still handles signals, and notices that another rank has failed.
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from system.errors import LostRankError

POLL_SECONDS = 0.05


class RankStore:
    """torch.distributed's store, as one rank uses it. All ranks make the same calls in the same order.

    Args:
        store: a torch.distributed.Store; None for a single process.
        local: the rank's number on its machine.
    """

    def __init__(self, store: Any, rank: int, world_size: int, local: int) -> None:
        self.store, self.rank, self.world_size, self.local = store, rank, world_size, local
        self.calls = 0  # numbers the keys

    def broadcast(self, value: Any) -> Any:
        """Return rank 0's value, which is JSON-serialisable."""
        self.calls += 1
        key = f"broadcast/{self.calls}"
        if self.rank == 0:
            self.store.set(key, json.dumps(value))
            return value
        self.wait_for(key)
        return json.loads(self.store.get(key))

    def first_found(self, value: str | None) -> str | None:
        """Return the value of the lowest rank that has one."""
        self.calls += 1
        self.store.set(f"found/{self.calls}/{self.rank}", value or "")
        for rank in range(self.world_size):
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
        self.store.set(key, "")

    def wait_for(self, key: str) -> None:
        """Wait until ``key`` is set. Raises LostRankError where another rank has failed."""
        while not self.store.check([key]):
            if self.store.add("errors", 0):
                raise LostRankError
            time.sleep(POLL_SECONDS)

    def claims_error(self) -> bool:
        """Return whether this rank is the first that failed, and so the one that prints why."""
        try:
            is_first = self.store.add("errors", 1) == 1
            deadline = time.monotonic() + 1
            while self.store.add("errors", 0) < self.world_size and time.monotonic() < deadline:
                time.sleep(POLL_SECONDS)  # the store may be rank 0's, and end with it
            return bool(is_first)
        except RuntimeError:  # the store has ended
            return True
