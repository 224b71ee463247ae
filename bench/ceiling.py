"""What this machine's torch can do at most: floating-point operations a second in matrix products, and bytes
a second in a copy. A process of its own, as the programs that are compared with it are.

    python -m bench.ceiling            one line of JSON
    python -m bench.ceiling --info     only versions, threads and GPU
"""

import argparse
import json
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

SIDE = {"cpu": 2048, "cuda": 8192}  # of the square matrices; large enough to keep the device busy
REPEATS = 15
COPIED = {"cpu": 2**28, "cuda": 2**31}  # bytes; many times any cache


def seconds(work: Callable[[], Any], repeats: int = REPEATS) -> float:
    """Median time of one call, after three that are not counted."""
    times = []
    for i in range(repeats + 3):
        wait()
        start = time.perf_counter()
        work()
        wait()
        if i >= 3:
            times.append(time.perf_counter() - start)
    return median(times)


def wait() -> None:
    """Until the GPU has done its work."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def flops(dtype: torch.dtype, device: str) -> float:
    """Operations a second, a multiplication and an addition being two, of a product of square matrices."""
    n = SIDE[device]
    a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
    out = torch.empty(n, n, device=device, dtype=dtype)
    return 2 * n**3 / seconds(lambda: torch.mm(a, b, out=out))


def copy_bandwidth(device: str) -> float:
    """Bytes a second, read and written, of a copy within the device's memory."""
    source = torch.zeros(COPIED[device] // 4, device=device)
    target = torch.empty_like(source)
    return 2 * COPIED[device] / seconds(lambda: target.copy_(source))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.ceiling", description=__doc__.split("\n")[0])
    parser.add_argument("--info", action="store_true", help="only versions, threads and GPU")
    asked = parser.parse_args()
    cuda = torch.cuda.is_available()
    device = "cuda" if cuda else "cpu"
    found: dict[str, Any] = {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if cuda else None,
    }
    if not asked.info:
        found["flops"] = {"fp32": flops(torch.float32, device), "bf16": flops(torch.bfloat16, device)}
        found["copy_bytes_per_s"] = copy_bandwidth(device)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
