"""One of several processes that take training steps together, and what they send alone. For bench/ranks.py,
which starts them by torchrun; nothing to run here."""

import json
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from bench.sizes import NANO
from bench.steps import Steps
from system import launch
from training import device
from training.parallel import process_group
from training.parallel.ranks import Ranks

MODELS: dict[str, tuple[str, ...]] = {  # a metric -> the norm and more of its command line
    "layernorm": ("layernorm",),
    "layernorm_in_shards": ("layernorm", "distributed=fsdp"),
    "batchnorm": ("batchnorm",),
    "batchnorm_unsynchronised": ("batchnorm", "norm.sync=false"),
}
TURNS = 5  # of each model, one after another
THREADS = "train.threads=1"


def steps(ranks: Ranks) -> dict[str, float]:
    """Seconds of a step of each model, the median of its turns; and what synchronising adds, the median of
    the turns' differences."""
    made = {
        name: Steps(norm, NANO, False, THREADS, *more, ranks=ranks) for name, (norm, *more) in MODELS.items()
    }
    turns: dict[str, list[float]] = {name: [] for name in made}
    for _ in range(TURNS):
        for name, one in made.items():
            turns[name].append(one.seconds())
    both = zip(turns["batchnorm"], turns["batchnorm_unsynchronised"], strict=True)
    added = median(synchronised - own for synchronised, own in both)
    found = {f"{name}_step_s": median(seconds) for name, seconds in turns.items()}
    return found | {"synchronising_adds_s": added} | alone(ranks, made["batchnorm"])


def alone(ranks: Ranks, model: Steps) -> dict[str, float]:
    """What is sent, without the rest of a step: the statistics of one BatchNorm, the gradients at once, and
    what FSDP sends of the parameters."""
    here = model.compute.device
    small = torch.zeros(2, NANO.n_embd, device=here)
    every = [torch.zeros_like(small) for _ in range(ranks.count)]
    whole = torch.zeros(sum(p.numel() for p in model.view.model.parameters()), device=here)
    whole = whole[: len(whole) // ranks.count * ranks.count]
    share = whole[: len(whole) // ranks.count].clone()
    calls: dict[str, Callable[[], Any]] = {
        "all_gather_statistics_s": lambda: dist.all_gather(every, small),
        "all_reduce_gradients_s": lambda: dist.all_reduce(whole),
        "all_gather_parameters_s": lambda: dist.all_gather_single(whole, share),
        "reduce_scatter_gradients_s": lambda: dist.reduce_scatter_single(share, whole),
    }
    return {name: seconds_of(call, small) for name, call in calls.items()}


def seconds_of(call: Callable[[], object], meeting: Tensor, times: int = 50) -> float:
    """The median; ranks meet before each."""
    found = []
    for _ in range(times):
        dist.all_reduce(meeting)
        start = time.perf_counter()
        call()
        if meeting.is_cuda:
            torch.cuda.synchronize()
        found.append(time.perf_counter() - start)
    return median(found[times // 5 :])


def main() -> None:
    with process_group.together("auto") as ranks:
        device.set_switches(device.choose("auto", "auto"), threads=1)
        if ranks.count > 1:
            found = steps(ranks)
        else:
            found = {}
            for norm in ("layernorm", "batchnorm"):
                one = Steps(norm, NANO, False, THREADS)
                found[f"{norm}_step_s"] = median(one.seconds() for _ in range(TURNS))
        if ranks.first:
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    with launch.exit_together():
        main()
        raise SystemExit(0)
