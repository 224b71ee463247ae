"""Where a run computes and in what precision, and torch's process-wide switches for it."""

import os
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from model.attention import Attend, PlainAttend
from model.head import Head, PaddedHead
from system import os_compat
from system.errors import ConfigError

TORCHS_THREADS = torch.get_num_threads()  # before any run of this process changed it

# Large tensors on a CPU lie in pages of 2 MiB, where Linux leaves that to programs: to zero pages of 4 KiB as
# they are first written to takes longer than most operations. torch looks at it before its first tensor.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")


@dataclass(frozen=True)
class Compute:
    """A device and a precision, ``auto`` resolved."""

    device: torch.device
    precision: str  # fp32 or bf16

    def tensor(self, tokens: np.ndarray[Any, Any]) -> Tensor:
        """On the device. A copy to a GPU is from pinned memory, so that nothing waits for it."""
        here = torch.from_numpy(tokens)
        if self.device.type == "cuda":
            return here.pin_memory().to(self.device, non_blocking=True)
        return here.to(self.device)

    def autocast(self) -> AbstractContextManager[None]:
        """Matrix products in bf16 where that is the precision; parameters stay fp32."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16")

    def attend(self, dropout: float) -> type[Attend]:
        """The kind of attention that trains fastest here."""
        return PlainAttend if self.device.type == "cpu" and (self.precision == "bf16" or dropout) else Attend

    def head(self, vocab_size: int) -> type[Head]:
        """Return the kind of head that trains fastest on this device."""
        return PaddedHead if self.device.type == "cuda" and vocab_size % 64 else Head

    def synchronize(self) -> None:
        """Wait until the device has done what it was given; a CPU always has."""
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)

    def evaluation_rows(self, block_size: int, vocab_size: int) -> int:
        """Rows to evaluate at once: on a CPU as many as stay in its caches, elsewhere enough to fill the
        device; where the vocabulary is large, as few as keep the logits below 64 MiB and 512 MiB in fp32."""
        tokens, logits = (4096, 2**24) if self.device.type == "cpu" else (65_536, 2**27)
        return max(1, min(tokens, logits // vocab_size) // block_size)

    def peak_memory(self) -> int:
        """The most bytes in use since the process began or ``forget`` was called: on a GPU by tensors, on a
        CPU by the whole process."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        return os_compat.peak_memory()

    def forget(self) -> None:
        """Give back the memory that a run left in this process, and forget its peak, as the runs of a sweep
        share one."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)
        os_compat.forget_peak()


def choose(device: str, precision: str) -> Compute:
    """Resolve ``auto``: by what the machine says it has, never by timing. Raises ConfigError for the rest."""
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
        torch.cuda.init()  # which torch does by itself not before the first tensor there
    if index and int(index) >= torch.cuda.device_count():
        raise ConfigError(f"device: {device}: there are {torch.cuda.device_count()} GPUs; count from cuda:0")
    if precision == "auto":
        precision = "bf16" if fast_bf16(kind) else "fp32"
    return Compute(torch.device(device), precision)


def fast_bf16(kind: str) -> bool:
    """Whether the device multiplies bf16 matrices in hardware."""
    if kind == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if kind == "cpu":
        has = torch.cpu.get_capabilities()
        return bool(has.get("avx512_bf16") or has.get("amx_bf16"))
    return False


def set_switches(compute: Compute, threads: int | None) -> int:
    """Set what torch keeps for the whole process, every run anew as runs of a sweep share one. Returns the
    threads.

    Deterministic algorithms: without them a compiled run differs from itself. (torch's other function for
    them sets the compiler's switch, too, and for that imports it; training.dry_run calls it.)
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # CUDA's matrix products, made deterministic
    torch.set_deterministic_debug_mode("error")
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # we read no memory before writing it
    torch.set_num_threads(threads or TORCHS_THREADS)
    os_compat.keep_freed_memory()
    return torch.get_num_threads()
