"""What it costs to train by several processes: a step by one rank and by several, as replicas (ddp) and in
shards (fsdp), and BatchNorm with its statistics over all ranks and over each one's own.

    python -m bench.ranks                        1 and 2 ranks
    python -m bench.ranks --ranks 2 --ranks 4

The default run's size (4 layers of 128, context 64, batch 32) on made-up tokens, eager, a thread for each
rank, in precision auto. Within a round the models take turns in the same processes, and what synchronising
adds is the median of their differences. Besides, what is sent, alone: the statistics of one BatchNorm (1 KB
of each rank), and all gradients or parameters (3 MB). Several ranks on this one machine: a network is slower.
No other program takes part: --peer and --data are not used."""

import argparse
import json
import os
import sys
from functools import partial

from bench import measure, options
from bench.measure import BenchError
from bench.report import Bench, Column, Measured
from rundir.environment import ROOT

COLUMNS: list[Column] = [
    ("layernorm_step_s", "step, ddp, ms", 1e-3),
    ("layernorm_in_shards_step_s", "fsdp, ms", 1e-3),
    ("batchnorm_step_s", "BatchNorm, ms", 1e-3),
    ("synchronising_adds_s", "synchronising adds, ms", 1e-3),
    ("all_gather_statistics_s", "all-gather of 1 KB, ms", 1e-3),
    ("all_reduce_gradients_s", "all-reduce of all gradients, ms", 1e-3),
]


def take(count: int) -> Measured:
    """A round of so many ranks."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={count}"]
    child = measure.run([*command, "-m", "bench.rank"], ROOT, {"OMP_NUM_THREADS": "1"})
    said = [line for _, line in child.lines if line.startswith("{")]
    if not said:
        raise BenchError(f"{count} ranks said nothing")
    found: Measured = json.loads(said[-1])
    return found


def name(count: int) -> str:
    return f"{count} rank{'s' * (count > 1)}"


def run(bench: Bench, asked: argparse.Namespace) -> None:
    counts = sorted({1, *(asked.ranks or [2])})
    bench.alternate({name(count): partial(take, count) for count in counts})
    for count in counts[1:]:
        bench.compare(name(count), name(1), "layernorm_step_s", "batchnorm_step_s")
        if count > (os.cpu_count() or 1) and not bench.cuda:
            bench.note(f"{count} ranks are more than this machine has cores: their steps wait for each other")
    bench.note("ratios are of seconds: with N ranks on N cores, 1/N is the best that can be")
    bench.show(COLUMNS)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", action="append", type=options.at_least_one, help="again for several; 2")


def main() -> None:
    options.program("ranks", __doc__, run, rounds=5, more=arguments)


if __name__ == "__main__":
    main()
