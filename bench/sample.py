"""Sampling tokens a second, ours and nanoGPT's: one text at a time, from a prompt of one token.

    python -m bench.sample --peer NANOGPT --data tinyshakespeare.txt
    python -m bench.sample --peer NANOGPT --data tinyshakespeare.txt --size cpu --extra precision=fp32

sample.py of both, as whole programs; temperature 1, nothing cut off. Neither prints a rate, and starting
takes longer than a short text, so differences are taken of whole programs' times:

    first text      (n - 1) / (T(n tokens) - T(1 token)): the first one, in which kernels are made ready
    further texts   n (S - 1) / (T(S texts of n tokens) - T(1 text of n tokens)): each one after it
"""

import argparse
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench import options, ours, peer
from bench.measure import Child
from bench.report import Bench, Column, Measured
from bench.sizes import SIZES, Size

LENGTHS = (64, 256, 1000)  # tokens
SHOWN: list[Column] = [
    *((f"first_{n}_tokens_per_s", f"first text of {n}, tokens/s", 1.0) for n in LENGTHS),
    *((f"further_{n}_tokens_per_s", f"further texts of {n}", 1.0) for n in LENGTHS),
    *((f"whole_{n}_s", f"program, {n}: s", 1.0) for n in LENGTHS),
    ("peak_memory_bytes", "memory, MB", 1e6),
]
Sampler = Callable[[int, int], Child]  # tokens, texts -> its sample.py, run


def texts(n: int) -> int:
    """How many, so that they take long enough to be told from the noise of starting."""
    return max(2, 1 + round(640 / n))


def take(sampler: Sampler, lengths: tuple[int, ...]) -> Measured:
    """Tokens a second at each length, and whole wall times. NaN where a difference drowned in noise."""
    one = sampler(1, 1)
    found: dict[str, float] = {"whole_1_s": one.seconds}
    peak = one.peak_memory
    for n in lengths:
        first, several = sampler(n, 1), sampler(n, texts(n))
        found[f"whole_{n}_s"] = first.seconds
        found[f"first_{n}_tokens_per_s"] = rate(n - 1, first.seconds - one.seconds)
        found[f"further_{n}_tokens_per_s"] = rate(n * (texts(n) - 1), several.seconds - first.seconds)
        peak = max(peak, several.peak_memory)
    return found | {"peak_memory_bytes": peak}


def rate(tokens: int, seconds: float) -> float:
    return tokens / seconds if seconds > 0 else math.nan


def our_sampler(bench: Bench, part: str, size: Size, extra: list[str]) -> Sampler:
    """Of a checkpoint after one step."""
    quick = ["train.steps=1", "train.eval_windows=1", "train.batch_size=1", "data.val_fraction=0.01"]
    run = ours.train(bench, [*size.overrides(), *quick])
    bench.settings[part] = ["temperature=1.0", "top_k=null", "max_new_tokens=N", "num_samples=S", *extra]

    def sampler(n: int, count: int) -> Child:
        drawn = [f"max_new_tokens={n}", f"num_samples={count}"]
        return ours.sample(bench, run.folder, ["temperature=1.0", "top_k=null", *drawn, *extra])

    return sampler


def peers_sampler(bench: Bench, part: str, theirs: peer.Peer, size: Size, out: str) -> Sampler:
    quick = ["--max_iters=1", "--eval_interval=1", "--eval_iters=1", "--batch_size=1"]
    theirs.train([*size.flags(), *quick, "--always_save_checkpoint=True"], out)
    common = ["--temperature=1.0", f"--top_k={size.vocab_size}"]
    bench.settings[part] = [*common, "--max_new_tokens=N", "--num_samples=S"]
    return lambda n, count: theirs.sample([*common, f"--max_new_tokens={n}", f"--num_samples={count}"], out)


def measure(bench: Bench, asked: argparse.Namespace) -> None:
    theirs = peer.of(bench)
    ours.warm_up(bench)
    lengths = tuple(asked.length or LENGTHS)
    for name in asked.size or ("cpu", "baby"):
        samplers: dict[str, Sampler] = {}
        if theirs:
            part = f"{name}: nanoGPT"
            samplers[part] = peers_sampler(bench, part, theirs, SIZES[name], str(Path(f"sampled-{name}")))
        part = f"{name}: ours"
        samplers[part] = our_sampler(bench, part, SIZES[name], asked.extra)
        metrics = [f"{of}_{n}_{unit}" for of, unit in RATES for n in lengths]
        bench.compare(part, f"{name}: nanoGPT", *metrics)
        bench.alternate({part: partial(take, sampler, lengths) for part, sampler in samplers.items()})
    bench.found["texts"] = {str(n): texts(n) for n in lengths}
    bench.note(
        "above 1, a ratio of tokens_per_s says that ours is faster; of whole programs' seconds, slower"
    )
    bench.show(SHOWN)


RATES = (("first", "tokens_per_s"), ("further", "tokens_per_s"), ("whole", "s"))


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", action="append", choices=("cpu", "baby"), help="again for several; both")
    parser.add_argument("--length", action="append", type=int, choices=LENGTHS, help="of a text; all")
    parser.add_argument(
        "--extra", action="append", default=[], metavar="KEY=VALUE", help="passed to our sample.py"
    )


def main() -> None:
    options.program("sample", __doc__, measure, rounds=5, more=arguments)


if __name__ == "__main__":
    main()
