"""Training tokens a second, ours and nanoGPT's, at the sizes of nanoGPT's recipes.

    python -m bench.train --peer NANOGPT --data tinyshakespeare.txt                all sizes
    python -m bench.train --peer NANOGPT --data tinyshakespeare.txt --size cpu     one
    python -m bench.train --peer NANOGPT --data tinyshakespeare.txt --curves       do the losses agree?

Ours is train.py with nanoGPT's recipe (experiment=nanogpt_cpu) at that size, with its default statistics,
in precision auto and fp32, compiled or not. nanoGPT's is its train.py: on a CPU in fp32, eager as its README
has it, and compiled; on a GPU compiled in bf16. Rates are medians over steps, ours on a CPU over tens of
them, the first ones left out; ours leave out the seconds of statistics, and `with statistics` does not.
Beside them: the model's operations a second (bench/sizes.py has the formula) against matrix products measured
in the same round, the largest process's memory on the host, and the seconds from the command to the end of
the first step, for which a round after the first finds compiled code."""

import argparse
from collections.abc import Callable, Sequence
from functools import partial

from bench import curves, machine, options, ours, peer
from bench.report import Bench, Column, Measured
from bench.sizes import SIZES, Size

VARIANTS = [(precision, compiled) for compiled in ("false", "true") for precision in ("auto", "fp32")]
COLUMNS: list[Column] = [
    ("tokens_per_s", "tokens/s", 1),
    ("tokens_per_s_with_statistics", "with statistics", 1),
    ("model_flops_per_s", "model GFLOP/s", 1e9),
    ("of_ceiling_percent", "% of ceiling", 1),
    ("peak_memory_bytes", "memory, MB", 1e6),
    ("first_step_s", "first step, s", 1),
    ("fp32_flops_per_s", "fp32 GFLOP/s", 1e9),
    ("bf16_flops_per_s", "bf16 GFLOP/s", 1e9),
]
MADE_UP_TOKENS = 20_000_000  # of the corpus that gpt2 is timed on


class Timed:
    """The parts of one benchmark: each is a function that measures once."""

    def __init__(self, bench: Bench, theirs: peer.Peer | None) -> None:
        self.bench, self.theirs = bench, theirs
        self.ceiling: dict[str, float] = {}  # of this round
        self.made_up: list[str] | None = None

    def take_ceiling(self) -> Measured:
        """Matrix products of 2048 x 2048 (8192 on a GPU), with as many threads."""
        self.ceiling = machine.torchs_view()["flops"]
        return {f"{precision}_flops_per_s": value for precision, value in self.ceiling.items()}

    def take_ours(self, part: str, size: Size, steps: int, precision: str, compiled: str) -> Measured:
        overrides = [
            *("experiment=nanogpt_cpu", *size.overrides(), *ours.QUIET),
            *(f"precision={precision}", f"compile={compiled}"),
            f"train.steps={steps}",
            # nanoGPT logs each step, and so waits for a GPU each step
            f"train.log_every={10 if steps >= 100 and not self.bench.cuda else 1}",
            "train.eval_windows=64",  # of the evaluation at the end, which is not timed
        ]
        data = self.data(size)
        self.bench.settings[part] = ours.told(overrides, *(["data=prepared"] if data else []))
        run = ours.train(self.bench, overrides, data=data)
        rate, with_statistics = ours.tokens_per_s(run.rows())
        environment = run.environment()
        if compiled == "true" and not environment["compile"]:
            self.bench.note(f"{part}: torch could not compile it; it ran eagerly")
        return (
            {"tokens_per_s": rate, "tokens_per_s_with_statistics": with_statistics}
            | self.operations(size, rate, environment["precision"])
            | {"peak_memory_bytes": run.child.peak_memory, "first_step_s": run.first_step}
        )

    def take_peers(self, part: str, size: Size, steps: int, more: Sequence[str] = ()) -> Measured:
        assert self.theirs
        flags = [
            *more,
            *(*size.flags(), "--eval_iters=1", "--log_interval=1"),
            *(f"--max_iters={steps}", f"--lr_decay_iters={steps}"),
        ]
        if size.vocab_size != 65:
            flags.append("--dataset=made_up")
        self.bench.settings[part] = self.theirs.told(flags)
        run = self.theirs.train(flags)
        rate = run.tokens_per_s(size.tokens)
        return (
            {"tokens_per_s": rate}
            | self.operations(size, rate, "bf16" if self.bench.cuda else "fp32")
            | {"peak_memory_bytes": run.child.peak_memory, "first_step_s": run.child.seconds_to("iter 0:")}
        )

    def operations(self, size: Size, rate: float, precision: str) -> dict[str, float]:
        done = size.flops_per_token * rate
        return {"model_flops_per_s": done, "of_ceiling_percent": 100 * done / self.ceiling[precision]}

    def data(self, size: Size) -> list[str] | None:
        """Overrides that name made-up tokens where the vocabulary is not tinyshakespeare's."""
        if size.vocab_size == 65:
            return None
        if self.made_up is None:
            folder = self.bench.work / "made-up"
            self.made_up = ours.made_up_corpus(folder, MADE_UP_TOKENS, size.vocab_size)
            if self.theirs:
                self.theirs.prepare_made_up(folder)
        return self.made_up


def measure(bench: Bench, asked: argparse.Namespace) -> None:
    theirs = peer.of(bench)
    ours.warm_up(bench)
    if asked.curves:
        curves.measure(bench, theirs, asked.seeds, asked.steps)
        return
    timed = Timed(bench, theirs)
    if theirs:
        bench.note(
            "ratios are ours over nanoGPT's, taken in the same round; above 1 of tokens_per_s is faster"
        )
    for name in asked.size or default_sizes(bench):
        size = SIZES[name]
        steps = asked.steps or (max(size.steps, 200) if bench.cuda else size.steps)
        timed.data(size)
        parts: dict[str, Callable[[], Measured]] = {"ceiling": timed.take_ceiling}
        if theirs:
            part = f"{name}: nanoGPT"
            parts[part] = partial(timed.take_peers, part, size, steps)
            if not bench.cuda:  # its README says not to on a CPU
                more = f"{part}, compiled"
                parts[more] = partial(timed.take_peers, more, size, steps, ["--compile=True"])
                bench.compare(more, part, "tokens_per_s")
        for precision, compiled in VARIANTS:
            part = f"{name}: ours, {precision}{', compiled' if compiled == 'true' else ''}"
            parts[part] = partial(timed.take_ours, part, size, steps, precision, compiled)
            bench.compare(part, f"{name}: nanoGPT", "tokens_per_s", "peak_memory_bytes")
        bench.alternate(parts)
    bench.show(COLUMNS)


def default_sizes(bench: Bench) -> list[str]:
    if bench.cuda:
        return ["cpu", "mid", "baby", "gpt2"]
    bench.note("gpt2, of 124 M parameters, needs a GPU and is left out")
    return ["cpu", "mid", "baby"]


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", action="append", choices=sorted(SIZES), help="again for several; all")
    parser.add_argument("--steps", type=options.at_least_one, help="of each run; by size")
    parser.add_argument("--curves", action="store_true", help="final losses of the whole CPU recipe instead")
    parser.add_argument("--seeds", type=options.at_least_one, default=3, help="of --curves; 3")


def main() -> None:
    options.program("train", __doc__, measure, rounds=3, more=arguments)


if __name__ == "__main__":
    main()
