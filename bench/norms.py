"""What each norm costs: its share of a training step, and alone, forward and backward.

    python -m bench.norms                          every norm of conf/norm
    python -m bench.norms --norm layernorm --norm torch_layernorm

In one process, in turn. A step is train.py's, forward, backward, clipping and update, of the default run's
size with the norm before each branch (placement=pre), eager and compiled, in precision auto; a norm's share
of it is 1 - seconds with norm=none / seconds. Alone: a norm's module on (B, T, C) of the default run and of
nanoGPT's GPU recipe, in fp32 and bf16. On a GPU also the bytes that a compiled norm has to move, read and
written, over its seconds, against a copy within the device's memory. No other program takes part: --peer
and --data are not used."""

import argparse
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

from bench import alone, options, steps
from bench.measure import BenchError
from bench.report import Bench, Column, Measured
from bench.sizes import BABY, NANO, Size
from cli.app import CONF
from training import device

# Ours against torch's of its kind; and the cheaper one against ours.
KINDS = (
    ("layernorm", "torch_layernorm"),
    ("rmsnorm", "torch_rmsnorm"),
    ("rmsnorm", "layernorm"),
    ("batchnorm", "torch_batchnorm"),
)
SHAPES = {"nano": NANO, "baby": BABY}
GPU_SHAPE = Size(12, 12, 768, 1024, 64)  # 200 MB of fp32: far beyond any cache
COLUMNS: list[Column] = [
    ("step_s", "step, ms", 1e-3),
    ("share_percent", "the norm's share, %", 1),
    ("alone_us", "alone, µs", 1),
    ("of_bandwidth_percent", "% of copy bandwidth", 1),
    ("copy_bytes_per_s", "copy, GB/s", 1e9),
]
NONE = "none"  # conf/norm/none.yaml: the identity


def name(kind: str, norm: str) -> str:
    return f"{kind}: {norm}"


def steps_in_turn(bench: Bench, norms: list[str], compiled: bool) -> None:
    """Blocks of steps of each norm's run, and the norm's share of a step."""
    kind = "step, compiled" if compiled else "step, eager"
    made: dict[str, steps.Steps] = {}
    for norm in norms:
        bench.say(f"norms: making ready: {kind}, {norm}")
        made[norm] = steps.Steps(norm, NANO, compiled)
    for one in made.values():
        one.step()
    without = [0.0]  # seconds of this round's step with norm=none

    def take(norm: str) -> Measured:
        seconds = made[norm].seconds()
        if norm == NONE:
            without[0] = seconds
            return {"step_s": seconds}
        return {"step_s": seconds, "share_percent": 100 * (1 - without[0] / seconds)}

    bench.alternate({name(kind, norm): partial(take, norm) for norm in norms})  # norm=none is the first
    for ours, theirs in KINDS:
        bench.compare(name(kind, ours), name(kind, theirs), "step_s")


def alone_in_turn(bench: Bench, norms: list[str], compiled: bool) -> None:
    """Each norm's forward and backward, by shape and precision."""
    shapes = {**SHAPES, "large": GPU_SHAPE} if bench.cuda else SHAPES
    for shape, size in shapes.items():
        for precision in ("fp32", "bf16"):
            kind = f"alone, {shape} {precision}, {'compiled' if compiled else 'eager'}"
            parts: dict[str, Callable[[], Measured]] = {}
            if bench.cuda and compiled:
                parts[f"copy, {shape} {precision}"] = partial(alone.copy, size, precision)
            for norm in norms:
                bench.say(f"norms: making ready: {kind}, {norm}")
                parts[name(kind, norm)] = alone.Alone(norm, size, precision, compiled)
            bench.alternate(parts)
            for ours, theirs in KINDS:
                bench.compare(name(kind, ours), name(kind, theirs), "alone_us")
            if bench.cuda and compiled:
                add_bandwidth(bench, kind, f"copy, {shape} {precision}", norms)


def add_bandwidth(bench: Bench, kind: str, copy: str, norms: list[str]) -> None:
    """Bytes a second over those of a copy, round by round."""
    copied = bench.raw[copy]["copy_bytes_per_s"]
    for norm in norms:
        found = bench.raw[name(kind, norm)]
        found["of_bandwidth_percent"] = [
            100 * moved / most for moved, most in zip(found["bytes_per_s"], copied, strict=True)
        ]


def measure(bench: Bench, asked: argparse.Namespace) -> None:
    there = sorted(file.stem for file in (CONF / "norm").glob("*.yaml"))
    wanted = asked.norm or there
    if unknown := [norm for norm in wanted if norm not in there]:
        raise BenchError(f"--norm: there is no {unknown[0]!r}; choose one of {', '.join(there)}")
    norms = [norm for norm in dict.fromkeys(wanted) if norm != NONE]
    steps.prepare_torch()
    device.set_switches(device.choose("auto", "auto"), threads=None)
    modes = [False] if asked.eager else [False, True]
    for compiled in modes:
        if not asked.alone:
            steps_in_turn(bench, [NONE, *norms], compiled)
        alone_in_turn(bench, norms, compiled)
    if not bench.cuda:
        bench.note("bytes moved against memory bandwidth needs a GPU and is left out")
    bench.note("ratios are of seconds: below 1, the first is faster")
    bench.found["shares"] = shares(bench)
    bench.show(COLUMNS)


def shares(bench: Bench) -> dict[str, Any]:
    """Median share of a step, in per cent, by mode and norm."""
    return {
        part: median(metrics["share_percent"])
        for part, metrics in bench.raw.items()
        if "share_percent" in metrics
    }


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--norm", action="append", help="of conf/norm; again for several; all")
    parser.add_argument("--alone", action="store_true", help="no training steps")
    parser.add_argument("--eager", action="store_true", help="nothing compiled")


def main() -> None:
    options.program("norms", __doc__, measure, rounds=7, more=arguments)


if __name__ == "__main__":
    main()
