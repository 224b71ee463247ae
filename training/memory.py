"""Report a lack of memory or disk space in one line."""

import re
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import psutil
import torch

from cli.operations import matrix_weights
from cli.schema import RunConfig
from model import GPT
from rundir.checkpoint_file import KEEP, saved_steps
from rundir.folder import Run
from system.errors import CheckpointError, ConfigError
from system.launch import world_size
from training.state import model_tensors

# Words in the errors of torch's, oneDNN's and the system's allocators, which have no common error type.
OUT_OF_MEMORY = re.compile(
    "out of memory|not enough memory|can't allocate|cannot allocate"
    "|could not create a memory|bad_alloc|alloc_failed",
    re.IGNORECASE,
)
OVERHEAD = 2**20  # bytes for a checkpoint's metadata and tokenizer, and the run's other files


@contextmanager
def explained_as(message: str) -> Iterator[None]:
    """Context manager: turn errors that mean a lack of memory into a ConfigError with this message."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        is_typed = isinstance(error, MemoryError | torch.OutOfMemoryError)
        if not is_typed and not OUT_OF_MEMORY.search(str(error)):
            raise
        raise ConfigError(message) from error


def explained(config: RunConfig) -> AbstractContextManager[None]:
    """Return a context manager that turns a lack of memory into a ConfigError naming the run's sizes."""
    sizes = config.train.model_dump(include={"batch_size", "grad_accum"})
    sizes |= config.model.model_dump(include={"block_size", "n_layer", "n_embd"})
    settings = " ".join(f"{key}={value}" for key, value in sizes.items())
    return explained_as(
        f"train.batch_size: out of memory at {settings}; raise train.grad_accum or lower another of these"
    )


def check_fits(config: RunConfig, vocab_size: int, device: torch.device) -> None:
    """Check by arithmetic, before any memory is taken, that the least that training needs is there: weights
    and gradients in fp32, and one moment of each weight. Raises ConfigError."""
    weights = matrix_weights(config.model.n_layer, config.model.n_embd, vocab_size)
    is_sharded = config.distributed == "fsdp" and world_size() > 1
    # bytes a weight: 4 while the model is built on the CPU; 12 for weight, gradient and moment
    building = 4 if is_sharded or device.type == "cuda" else 12
    places = [("this machine", building * weights, psutil.virtual_memory().total)]
    if device.type == "cuda" and not is_sharded:
        places += [(str(device), 12 * weights, torch.cuda.get_device_properties(device).total_memory)]
    for place, needed, available in places:
        if needed > available:
            raise ConfigError(
                f"model: about {weights:,} parameters, which need {needed / 1e9:,.1f} GB at least, but "
                f"{place} has {available / 1e9:,.1f} GB of memory; lower model.n_embd or model.n_layer"
            )


def check_disk(run: Run, model: GPT) -> None:
    """Check, on rank 0, that the disk has room for all checkpoints that exist at one time: the newest KEEP,
    the best, and the one that is being written, but no more than the run saves. Raises CheckpointError."""
    if not run.writes:
        return
    train = run.config.train
    saves = [train.steps // every for every in (train.checkpoint_every, train.eval_every) if every]
    files = max(1, min(KEEP + 2, 1 + sum(saves)) - len(saved_steps(run.checkpoints)))
    moments = 2 * sum(p.nbytes for p in model.parameters())  # AdamW has two per parameter, Muon one
    size = sum(tensor.nbytes for tensor in model_tensors(model).values()) + moments + OVERHEAD
    free = shutil.disk_usage(run.checkpoints).free
    if files * size > free:
        raise CheckpointError(
            f"{run.checkpoints}: its disk has {free:,} bytes free, but the next checkpoints ({files} of "
            f"{size:,} bytes) need {files * size:,}; make room or name another runs_dir"
        )
