"""Processes that make tokens of blocks of text, beside the one that reads and writes."""

import collections
import contextlib
import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data import tokenizers
from data.blocks import Block
from data.documents import ended
from system.errors import DataError

AHEAD = 2**25  # bytes of text in memory, for each process; one block is always let in
END = "<|endoftext|>"
Encoder = Callable[[Block], NDArray[np.unsignedinteger]]


class Workers:
    """So many processes. However this one ends, they do."""

    def __init__(self, processes: int, spec: dict[str, Any]) -> None:
        # One that ends at once leaves semaphores to the process that Python has for that, which says so.
        asked = os.environ.get("PYTHONWARNINGS")
        os.environ["PYTHONWARNINGS"] = ",".join(filter(None, (asked, "ignore:resource_tracker")))
        self.processes = processes
        self.blocks, self.bytes = 2 * processes, AHEAD * processes  # that are in memory at most
        self.pool = ProcessPoolExecutor(
            processes,
            multiprocessing.get_context("spawn"),
            initializer=begin,
            initargs=(os.getpid(), json.dumps(spec)),
        )

    def encoded(self, some: Iterable[Block]) -> Iterator[tuple[Block, NDArray[np.unsignedinteger]]]:
        """Each block with its tokens, in their order. Raises DataError."""
        waiting: collections.deque[tuple[Block, Future[NDArray[np.unsignedinteger]]]] = collections.deque()
        with without_ctrl_c():
            for _ in range(self.processes):
                self.pool.submit(os.getpid)  # starts one
        try:
            for block in some:
                while waiting and not self.room(block, [one for one, _ in waiting]):
                    first, future = waiting.popleft()
                    yield first, future.result()
                waiting.append((block, self.pool.submit(encode, block)))
            for block, future in waiting:
                yield block, future.result()
        except BrokenProcessPool:
            why = "a process was killed, as a system does that runs out of memory"
            raise DataError(f"--processes: {why}; give fewer, and the same command goes on") from None

    def room(self, block: Block, waiting: Sequence[Block]) -> bool:
        """Whether it fits into memory beside them."""
        return len(waiting) < self.blocks and block.size + sum(one.size for one in waiting) <= self.bytes

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error:  # nobody waits for what they are at
            for process in multiprocessing.active_children():
                process.kill()
        self.pool.shutdown(wait=not error, cancel_futures=True)


@contextlib.contextmanager
def without_ctrl_c() -> Iterator[None]:
    """In here it waits, and processes that are started never get it: it is for the one that starts them."""
    pressed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    mask: Any = getattr(signal, "pthread_sigmask", lambda *_: None)  # Windows has none
    inherited = mask(getattr(signal, "SIG_BLOCK", 0), {signal.SIGINT})
    try:
        yield
    finally:
        mask(getattr(signal, "SIG_SETMASK", 0), inherited)
        signal.signal(signal.SIGINT, before)
    if pressed:
        raise KeyboardInterrupt


def begin(parent: int, spec: str) -> None:
    """The start of a worker."""
    global encode_block
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of Windows

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    encode_block = encoder(tokenizers.from_spec(json.loads(spec)))


encode_block: Encoder  # of a worker


def encode(block: Block) -> NDArray[np.unsignedinteger]:
    return encode_block(block)


def encoder(tokenizer: tokenizers.Tokenizer) -> Encoder:
    """Block -> its tokens, those of its documents each with an end."""
    dtype = np.uint16 if tokenizer.vocab_size <= 2**16 else np.uint32
    special = getattr(tokenizer, "special", ())
    marks = END in special
    end = np.array([tokenizer.vocab_size - len(special) + special.index(END)] if marks else [], dtype)

    def encoded(block: Block) -> NDArray[np.unsignedinteger]:
        parts = []
        for document in block.documents():
            for piece in document if marks or not block.of_documents else ended(document, "\n"):
                try:
                    parts.append(tokenizer.encode(piece).astype(dtype, copy=False))
                except DataError as error:
                    raise DataError(f"{block.path}: behind {block.start:,}: {error}") from None
            if block.of_documents:
                parts.append(end)
        return np.concatenate([end[:0], *parts])

    return encoded
