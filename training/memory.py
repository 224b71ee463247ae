"""Memory and disk that are not there: one line that says what a run needs them for."""

import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from cli.schema import RunConfig
from rundir.checkpoint_file import KEEP, saved_steps
from system.errors import CheckpointError, ConfigError
from training.muon import Muon
from training.optimizer import AdamW

# What torch's, oneDNN's and the system's allocators say: there is no common error for it.
LACKING = (
    "out of memory",
    "not enough memory",
    "can't allocate",
    "cannot allocate",
    "could not create a memory",
    "bad_alloc",
    "alloc_failed",
)
BESIDES = 2**20  # bytes: what a checkpoint says of itself and its tokenizer, and the run's other files


@contextmanager
def lacking_memory(message: str) -> Iterator[None]:
    """Inside, memory that cannot be had is a ConfigError with this message."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        said = any(words in str(error).lower() for words in LACKING)
        if not said and not isinstance(error, MemoryError | torch.OutOfMemoryError):
            raise
        raise ConfigError(message) from error


def training_sizes(config: RunConfig) -> str:
    """What asks for a run's memory, as the message of a ConfigError."""
    sizes = config.train.model_dump(include={"batch_size", "grad_accum"})
    sizes |= config.model.model_dump(include={"block_size", "n_layer", "n_embd"})
    asked = " ".join(f"{key}={value}" for key, value in sizes.items())
    return f"train.batch_size: out of memory at {asked}; raise train.grad_accum or make another one smaller"


def saves_of(config: RunConfig) -> int:
    """How many checkpoints a run may save: one at its end, and when these are due."""
    train = config.train
    return 1 + sum(train.steps // every for every in (train.checkpoint_every, train.eval_every) if every)


def size_of(tensors: Iterable[Tensor], optimizers: Sequence[AdamW | Muon]) -> int:
    """Bytes of a checkpoint with a model's tensors and what the optimizers keep."""
    kept = [
        p.nbytes * len({*optimizer.keeps} - {"step"})
        for optimizer in optimizers
        for group in optimizer.param_groups
        for p in group["params"]
    ]
    return sum(tensor.nbytes for tensor in tensors) + sum(kept) + BESIDES


def check_room(folder: Path, size: int, most: int) -> None:
    """Whether the disk takes all checkpoints, of ``size`` bytes each, that are there at once: the newest
    KEEP, the best, and the one that is being written, and no more than ``most``. Raises CheckpointError."""
    files = max(1, min(KEEP + 2, most) - len(saved_steps(folder)))
    free = shutil.disk_usage(folder).free
    if files * size > free:
        raise CheckpointError(
            f"{folder}: its disk has {free:,} bytes free, but {files} checkpoints of {size:,} bytes need "
            f"{files * size:,}; make room or name another runs_dir"
        )
