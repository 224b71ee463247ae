"""Sampling tokens a second, ours and nanoGPT's: one text at a time, from a prompt of one token.

    python -m bench.sample --peer NANOGPT --data tinyshakespeare.txt
    python -m bench.sample --peer NANOGPT --data tinyshakespeare.txt --size cpu --extra precision=fp32

sample.py of both, as whole programs; temperature 1, nothing cut off. Starting takes longer than a short
text and is left out: ours prints its rate, of which the median of some starts is taken; nanoGPT draws several
texts one after another, and its rate is that of the median of the times between their ends. So ours has in it
that kernels are made ready for the first tokens, but for the few of its trial of the decoder, and nanoGPT's
has not. Ours draws several side by side: their tokens together are one more column.
"""

import argparse
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from statistics import median

from bench import options, ours, peer
from bench.measure import BenchError, Child
from bench.report import Bench, Column, Measured
from bench.sizes import SIZES, Size

LENGTHS = (64, 256, 1000)  # tokens
SHOWN: list[Column] = [
    *((f"{n}_tokens_per_s", f"1 text of {n}, tokens/s", 1.0) for n in LENGTHS),
    *((f"several_{n}_tokens_per_s", f"several of {n}", 1.0) for n in LENGTHS),
    *((f"whole_{n}_s", f"program, {n}: s", 1.0) for n in LENGTHS),
    ("peak_memory_bytes", "memory, MB", 1e6),
]
Sampler = Callable[[int, int], Child]  # tokens, texts -> its sample.py, run


def texts(n: int) -> int:
    """How many "several" are, of n tokens each: 11 of 64, 3 of 256, 2 of 1000."""
    return max(2, 1 + round(640 / n))


def starts(n: int) -> int:
    """How often a program is run for one text. What else the machine does slows it for longer than a short
    text takes, so one start may see nothing but that."""
    return 3 if n < 1000 else 1


def take_ours(sampler: Sampler, lengths: tuple[int, ...]) -> Measured:
    """Tokens a second at each length, of one text and of several, and whole wall times."""
    found, peak = {}, 0
    for n in lengths:
        ones, several = [sampler(n, 1) for _ in range(starts(n))], sampler(n, texts(n))
        found[f"whole_{n}_s"] = median(one.seconds for one in ones)
        found[f"{n}_tokens_per_s"] = median(ours.printed_rate(one) for one in ones)
        found[f"several_{n}_tokens_per_s"] = ours.printed_rate(several)
        peak = max(peak, several.peak_memory)
    return found | {"peak_memory_bytes": peak}


def take_peers(sampler: Sampler, lengths: tuple[int, ...]) -> Measured:
    """The same, but several texts are one after another."""
    found, peak = {}, 0
    for n in lengths:
        found[f"whole_{n}_s"] = median(sampler(n, 1).seconds for _ in range(starts(n)))
        several = sampler(n, texts(n))
        ends = [seconds for seconds, line in several.lines if line == peer.END_OF_TEXT]
        if len(ends) != texts(n):
            raise BenchError(f"nanoGPT's sample.py ended {len(ends)} texts, not {texts(n)}")
        found[f"{n}_tokens_per_s"] = n / median(end - before for before, end in pairwise(ends))
        found[f"several_{n}_tokens_per_s"] = found[f"{n}_tokens_per_s"]
        peak = max(peak, several.peak_memory)
    return found | {"peak_memory_bytes": peak}


def our_sampler(bench: Bench, part: str, size: Size, extra: list[str]) -> Sampler:
    """Of a checkpoint after one step."""
    quick = ["train.steps=1", "train.eval_windows=1", "train.batch_size=1", "data.val_fraction=0.01"]
    quick += ["precision=fp32"]  # of training; sample.py chooses its own
    run = ours.train(bench, [*size.overrides(), *quick])
    bench.settings[part] = ["temperature=1.0", "top_k=null", "max_new_tokens=N", "num_samples=S", *extra]

    def sampler(n: int, count: int) -> Child:
        drawn = [f"max_new_tokens={n}", f"num_samples={count}"]
        child = ours.sample(bench, run.folder, ["temperature=1.0", "top_k=null", *drawn, *extra])
        theirs = "bf16" if bench.cuda else "fp32"
        bench.note(f"{part} ran in {ours.printed_precision(child)}; nanoGPT in {theirs}")
        return child

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
        parts: dict[str, Callable[[], Measured]] = {}
        if theirs:
            part = f"{name}: nanoGPT"
            peers = peers_sampler(bench, part, theirs, SIZES[name], f"sampled-{name}")
            parts[part] = partial(take_peers, peers, lengths)
        part = f"{name}: ours"
        parts[part] = partial(take_ours, our_sampler(bench, part, SIZES[name], asked.extra), lengths)
        metrics = [f"{of}{n}_{unit}" for of, unit in SHOWN_RATIOS for n in lengths]
        bench.compare(part, f"{name}: nanoGPT", *metrics)
        bench.alternate(parts)
    bench.found["texts"] = {str(n): texts(n) for n in lengths}
    bench.note(
        "above 1, a ratio of tokens_per_s says that ours is faster; of whole programs' seconds, slower"
    )
    bench.note(
        "of a text longer than the context nanoGPT sees as many last tokens as fit; ours, whose window "
        "hops, between half of these and all"
    )
    bench.note("several texts: ours are drawn side by side, nanoGPT's one after another")
    bench.show(SHOWN)


SHOWN_RATIOS = (("", "tokens_per_s"), ("whole_", "s"))


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
