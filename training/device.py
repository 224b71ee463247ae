"""The device and precision of a run, torch's switches for them, and errors when memory runs out."""

import ctypes
import re
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil
import torch
from torch import Tensor

from cli.schema import RunConfig
from data.errors import ConfigError
from model.attention import Attend, PlainAttend
from model.layers import Head, PaddedHead

DEFAULT_THREADS = torch.get_num_threads()  # before any run of this process changes it


@dataclass(frozen=True)
class Compute:
    """The device and precision of a run; ``auto`` is resolved."""

    device: torch.device
    precision: str  # fp32 or bf16

    def __str__(self) -> str:
        """Return a text such as ``cpu in fp32``, with a warning if the processor only emulates bf16."""
        slow = self.precision == "bf16" and self.device.type == "cpu" and not fast_bf16("cpu")
        warning = ", which this processor has to emulate: precision=fp32 is many times faster" if slow else ""
        return f"{self.device} in {self.precision}{warning}"

    def tensor(self, tokens: np.ndarray[Any, Any]) -> Tensor:
        """Return tokens as a tensor on the device. A GPU copies from pinned memory, so that no step waits.
        The array is made contiguous first: a contiguous copy by torch would not be pinned."""
        tensor = torch.from_numpy(np.ascontiguousarray(tokens))
        if self.device.type == "cuda":
            return tensor.pin_memory().to(self.device, non_blocking=True)
        return tensor.to(self.device)

    def autocast(self) -> torch.autocast:
        """Return a context manager, also a decorator, that computes matrix products in bf16 if the run's
        precision is bf16. Parameters stay fp32."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16")

    def attend(self, dropout: float) -> type[Attend]:
        """Return the kind of attention that trains fastest on this device."""
        return PlainAttend if self.device.type == "cpu" and (self.precision == "bf16" or dropout) else Attend

    def head(self, vocab_size: int) -> type[Head]:
        """Return the kind of head that trains fastest on this device."""
        return PaddedHead if self.device.type == "cuda" and vocab_size % 64 else Head

    def synchronize(self) -> None:
        """Wait until the device has done its work; a CPU has no work pending."""
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)

    def evaluation_rows(self, block_size: int, vocab_size: int) -> int:
        """Return how many rows to evaluate at once, at least one: on a CPU as many as fit into its caches,
        elsewhere enough to fill the device. Their fp32 logits take at most 32 MiB on a CPU, and 512 MiB
        elsewhere. On a CPU, malloc maps larger buffers anew each time: with GPT-2's vocabulary, 64 MiB took
        1.6 times as long."""
        tokens, logits = (4096, 2**23) if self.device.type == "cpu" else (65_536, 2**27)
        return max(1, min(tokens, logits // vocab_size) // block_size)

    def peak_memory(self) -> int:
        """Return the most bytes in use so far: on a GPU by tensors, on a CPU by the whole process."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def choose(device: str, precision: str) -> Compute:
    """Resolve ``auto`` by the hardware, never by timing. Raises ConfigError for a missing device."""
    has = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    available = [kind for kind in has if has[kind]]
    kind, _, index = device.partition(":")
    if kind == "auto":
        kind = device = available[0]
    if kind not in available:
        raise ConfigError(f"device: {device} is not available here; choose one of {', '.join(available)}")
    if kind == "cuda":
        torch.cuda.init()  # otherwise torch does this at the first tensor
    if index and int(index) >= (count := torch.cuda.device_count()):
        raise ConfigError(f"device: {device} does not exist; choose from cuda:0 to cuda:{count - 1}")
    if index:  # pinned memory, and what torch says about the hardware, belong to the current device
        torch.cuda.set_device(int(index))
    if precision == "auto":
        precision = "bf16" if fast_bf16(kind) else "fp32"
    return Compute(torch.device(device), precision)


def fast_bf16(kind: str) -> bool:
    """Return whether the device multiplies bf16 matrices in hardware."""
    if kind == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if kind == "cpu":
        flags = torch.cpu.get_capabilities()
        return bool(flags.get("avx512_bf16") or flags.get("amx_bf16"))
    return False


def set_switches(threads: int | None, deterministic: bool = True) -> int:
    """Set torch's process-wide switches. Return the number of threads.

    Without ``deterministic``, a run on a GPU, or a compiled run, gives other numbers when it is repeated.
    Only training/compile.py calls torch.use_deterministic_algorithms: this also sets the compiler's switch,
    and imports the compiler to do so.
    """
    torch.set_deterministic_debug_mode("error" if deterministic else "default")
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # we read no memory before writing it
    torch.set_num_threads(threads or DEFAULT_THREADS)
    keep_freed_memory()
    return torch.get_num_threads()


def keep_freed_memory() -> None:
    """Let glibc keep freed blocks of up to 32 MiB for the next step. By default it returns them to the
    system, which zeroes each page again: this takes up to 1/4 of an uncompiled step on a CPU."""
    M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
    with suppress(OSError, AttributeError, TypeError):  # the C library is not glibc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, 32 * 2**20)
        mallopt(M_TRIM_THRESHOLD, -1)  # -1: never trim


# ---------------------------------------------------------------------------------------------------
# Memory

# Words in the errors of torch's, oneDNN's and the system's allocators, which have no common error type.
OUT_OF_MEMORY = re.compile(
    "out of memory|not enough memory|can't allocate|cannot allocate"
    "|could not create a memory|bad_alloc|alloc_failed",
    re.IGNORECASE,
)


def is_out_of_memory(error: BaseException) -> bool:
    is_typed = isinstance(error, MemoryError | torch.OutOfMemoryError)
    return is_typed or (isinstance(error, RuntimeError) and bool(OUT_OF_MEMORY.search(str(error))))


@contextmanager
def memory_explained(message: str) -> Iterator[None]:
    """Context manager: turn out-of-memory errors into a ConfigError with this message."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise ConfigError(message) from error


def out_of_memory_message(config: RunConfig) -> str:
    """Return the message for a run that does not fit into memory."""
    sizes = config.train.model_dump(include={"batch_size", "grad_accum"})
    sizes |= config.model.model_dump(include={"block_size", "n_layer", "n_embd"})
    settings = " ".join(f"{key}={value}" for key, value in sizes.items())
    return f"train.batch_size: out of memory at {settings}; raise train.grad_accum or lower one of the others"


def check_fits(config: RunConfig, vocab_size: int, device: torch.device) -> None:
    """Raise ConfigError if memory is too small for the least that training needs: weights, gradients and one
    moment of each weight, in fp32. This only computes sizes, and takes no memory."""
    model = config.model
    weights = 12 * model.n_layer * model.n_embd**2 + vocab_size * model.n_embd
    if device.type == "cuda":
        available = torch.cuda.get_device_properties(device).total_memory
    else:
        available = psutil.virtual_memory().total
    if 12 * weights > available:
        raise ConfigError(
            f"model: about {weights:,} parameters, which need {12 * weights / 1e9:,.1f} GB at least, but "
            f"{device} has {available / 1e9:,.1f} GB of memory; lower model.n_embd or model.n_layer"
        )
