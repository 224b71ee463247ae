"""The device and precision of a run, and torch's process-wide switches for them."""

import gc
import os
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from model.attention import Attend, PlainAttend
from model.head import Head, PaddedHead
from system import os_compat
from system.errors import ConfigError
from system.launch import worker, world_size

THREADS_A_CORE = 8  # train.threads per core at most, so that a run of a larger machine can be repeated here
DEFAULT_THREADS = torch.get_num_threads()  # before any run of this process changes it

# Ask for pages of 2 MiB for large tensors on a CPU, where Linux leaves this choice to programs: zeroing pages
# of 4 KiB at their first write takes longer than most operations. torch reads this before its first tensor.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
# Without it CUDA's matrix products are refused where they have to be deterministic. It is read only once.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@dataclass(frozen=True)
class Compute:
    """The device and precision of a run, neither of them ``auto`` any more."""

    device: torch.device
    precision: str  # fp32 or bf16

    def __str__(self) -> str:
        """Return such as ``cpu in fp32``, with a warning if the processor only emulates bf16."""
        slow = self.precision == "bf16" and self.device.type == "cpu" and not fast_bf16("cpu")
        warning = ", which this processor has to emulate: precision=fp32 is many times faster" if slow else ""
        return f"{self.device} in {self.precision}{warning}"

    def tensor(self, tokens: np.ndarray[Any, Any]) -> Tensor:
        """Return tokens as a tensor on the device. A GPU copies from pinned memory, so that no step waits; of
        memory that is not contiguous, torch would make a copy that is not pinned."""
        tensor = torch.from_numpy(np.ascontiguousarray(tokens))
        if self.device.type == "cuda":
            return tensor.pin_memory().to(self.device, non_blocking=True)
        return tensor.to(self.device)

    def autocast(self) -> torch.autocast:
        """Return a context manager and decorator that computes matrix products in bf16 if that is the
        precision; parameters stay fp32."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16")

    def attend(self, dropout: float) -> type[Attend]:
        """Return the kind of attention that trains fastest on this device."""
        return PlainAttend if self.device.type == "cpu" and (self.precision == "bf16" or dropout) else Attend

    def head(self, vocab_size: int) -> type[Head]:
        """Return the kind of head that trains fastest on this device."""
        return PaddedHead if self.device.type == "cuda" and vocab_size % 64 else Head

    def synchronize(self) -> None:
        """Wait until the device has done its work; a CPU always has."""
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)

    def evaluation_rows(self, block_size: int, vocab_size: int) -> int:
        """Return how many rows to evaluate at once: on a CPU as many as fit its caches, elsewhere enough to
        fill the device, but with fp32 logits below 64 MiB on a CPU and 512 MiB elsewhere; at least one."""
        tokens, logits = (4096, 2**24) if self.device.type == "cpu" else (65_536, 2**27)
        return max(1, min(tokens, logits // vocab_size) // block_size)

    def gpu(self) -> str | None:
        """Return the name of the GPU; None on another device."""
        return torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else None

    def peak_memory(self) -> int:
        """Return the most bytes in use since the process began or ``release`` was called: on a GPU by
        tensors, on a CPU by the whole process."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        return os_compat.peak_memory()

    def release(self) -> None:
        """Free the memory that a run left in this process, and reset the peak memory: the runs of a sweep
        share a process. The compiler, if it was used, keeps the memory of CUDA graphs until it is reset."""
        if self.device.type == "cuda":
            if "torch._dynamo" in sys.modules:
                torch.compiler.reset()
                gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)
        os_compat.trim_memory_and_reset_peak()


def choose(device: str, precision: str) -> Compute:
    """Resolve ``auto`` by the hardware, never by timing. Raises ConfigError for a missing device."""
    available = ["cpu"]
    if torch.backends.mps.is_available():
        available.insert(0, "mps")
    if torch.cuda.is_available():
        available.insert(0, "cuda")
    kind, _, index = device.partition(":")
    if kind == "auto":
        kind = device = available[0]
    if kind not in available:
        raise ConfigError(f"device: {device} is not available here; choose one of {', '.join(available)}")
    if kind == "cuda":
        torch.cuda.init()  # otherwise torch does this at the first tensor
        if not index and world_size() == 1:  # the workers of a sweep take the GPUs in turn; ranks have theirs
            torch.cuda.set_device(worker() % torch.cuda.device_count())
    if index and int(index) >= (count := torch.cuda.device_count()):
        raise ConfigError(f"device: {device} does not exist; choose from cuda:0 to cuda:{count - 1}")
    if index:  # pinned memory and torch's questions about the hardware are of the current device
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


def set_switches(compute: Compute, threads: int | None, deterministic: bool = True) -> int:
    """Set torch's process-wide switches; call this for every run, as the runs of a sweep share a process.
    Returns the number of threads. Raises ConfigError if they are far too many for this machine.

    ``deterministic``: without it a run on a GPU, or a compiled one, gives other numbers when it is repeated.
    (torch.use_deterministic_algorithms also sets the compiler's switch, for which it imports the compiler;
    only training/compile.py calls it.)
    """
    if threads and threads > (most := THREADS_A_CORE * (os.cpu_count() or 1)):
        raise ConfigError(f"train.threads: {threads} threads on {os.cpu_count()} cores; give at most {most}")
    torch.set_deterministic_debug_mode("error" if deterministic else "default")
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # we read no memory before writing it
    torch.set_num_threads(threads or DEFAULT_THREADS)
    os_compat.keep_freed_memory()
    return torch.get_num_threads()
