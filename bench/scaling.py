"""Training tokens a second against depth, width, context and batch; and memory over a long run and a large
corpus.

    python -m bench.scaling --peer NANOGPT --data tinyshakespeare.txt
    python -m bench.scaling --data tinyshakespeare.txt --only memory --steps 10000 --gigabytes 2

One of the four is varied, the others are the default run's (4 layers of 128, context 64, batch 32). Rates
are as in bench.train. Memory over a run is that of its process, read as it trains. The corpus is made up, a
token file of that size; what counts is the memory that is the process's own (RssAnon): pages of the file
that the system has mapped into it are taken back where memory is short. Beside the JSON file a figure is
written, as SVG."""

import argparse
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from bench import memory, options, ours, peer
from bench.plot import draw
from bench.report import Bench, Column, Measured
from bench.sizes import NANO, Size

AXES: dict[str, tuple[str, tuple[int, ...]]] = {
    "depth": ("n_layer", (1, 2, 4, 8, 16)),
    "width": ("n_embd", (64, 128, 256, 512)),
    "context": ("block_size", (32, 64, 128, 256, 512)),
    "batch": ("batch_size", (4, 8, 16, 32, 64)),
}
WORK = 1e12  # floating-point operations of a measurement: some seconds
COLUMNS: list[Column] = [
    ("tokens_per_s", "tokens/s", 1),
    ("first_step_s", "first step, s", 1),
    ("peak_memory_bytes", "memory, MB", 1e6),
    ("own_memory_bytes", "its own, MB", 1e6),
]


def steps_of(size: Size) -> int:
    return max(20, min(200, round(WORK / (size.flops_per_token * size.tokens))))


def take_ours(bench: Bench, part: str, size: Size, compiled: bool) -> Measured:
    overrides = [
        *("experiment=nanogpt_cpu", *size.overrides(), *ours.QUIET, f"train.steps={steps_of(size)}"),
        *("train.log_every=1", "train.eval_windows=1", f"compile={str(compiled).lower()}"),
    ]
    bench.settings[part] = ours.told(overrides)
    run = ours.train(bench, overrides)
    rate, _ = ours.tokens_per_s(run.rows())
    return {"tokens_per_s": rate, "peak_memory_bytes": run.child.peak_memory}


def take_peers(bench: Bench, part: str, theirs: peer.Peer, size: Size, compiled: bool) -> Measured:
    flags = [
        *(*size.flags(), "--eval_iters=1", "--log_interval=1", f"--max_iters={steps_of(size)}"),
        *([f"--compile={compiled}"] if bench.cuda else []),
    ]
    bench.settings[part] = theirs.told(flags)
    run = theirs.train(flags)
    return {"tokens_per_s": run.tokens_per_s(size.tokens), "peak_memory_bytes": run.child.peak_memory}


def rates(bench: Bench, theirs: peer.Peer | None, axes: list[str], compiled: bool) -> None:
    """Every axis in turn, and in it every value."""
    points = []
    for axis in axes:
        key, values = AXES[axis]
        parts: dict[str, Callable[[], Measured]] = {}
        for value in values:
            size = replace(NANO, **{key: value})
            names = {"ours": f"{axis} {value}: ours"}
            parts[names["ours"]] = partial(take_ours, bench, names["ours"], size, compiled)
            if theirs:
                names["nanoGPT"] = f"{axis} {value}: nanoGPT"
                part = names["nanoGPT"]
                parts[part] = partial(take_peers, bench, part, theirs, size, compiled)
                bench.compare(names["ours"], names["nanoGPT"], "tokens_per_s")
            points += [
                {"axis": axis, "value": value, "program": program, "part": part}
                for program, part in names.items()
            ]
        bench.alternate(parts)
    bench.found["points"] = points


def measure(bench: Bench, asked: argparse.Namespace) -> None:
    only = asked.only or [*AXES, "memory"]
    theirs = peer.of(bench) if {*only} & {*AXES} else None
    ours.warm_up(bench)
    rates(bench, theirs, [axis for axis in only if axis in AXES], asked.compile)
    if "memory" in only:
        memory.long_run(bench, asked.steps)
        memory.large_corpus(bench, asked.gigabytes)
    bench.show(COLUMNS)
    figure = bench.out.with_suffix(".svg")
    draw(bench, figure)
    print(figure)


def positive(text: str) -> float:
    value = float(text)
    if not 0 < value < 1000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number between 0 and 1000")
    return value


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", action="append", choices=[*AXES, "memory"], help="again for several; all")
    parser.add_argument("--steps", type=options.at_least_one, default=10_000, help="of the long run; 10000")
    parser.add_argument("--gigabytes", type=positive, default=2.0, help="of the large token file; 2")
    parser.add_argument("--compile", action="store_true", help="ours compiled")


def main() -> None:
    options.program("scaling", __doc__, measure, rounds=3, more=arguments)


if __name__ == "__main__":
    main()
