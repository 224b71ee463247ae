"""Everything about nanoGPT: a checkout that the user names is run as it is, in a folder of ours. Nothing of
it is part of this project. Nothing to run here.

https://github.com/karpathy/nanoGPT
"""

import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from bench import measure
from bench.measure import BenchError, Child, settled
from bench.report import Bench

FILES = (
    "train.py",
    "sample.py",
    "model.py",
    "configurator.py",
    "config/train_shakespeare_char.py",
    "data/shakespeare_char/prepare.py",
)
CONFIG = "config/train_shakespeare_char.py"  # its recipe for tinyshakespeare
# What its README adds for a CPU. Its train.py makes max_iters + 1 updates, one after the last evaluation.
CPU_RECIPE = (
    *("--eval_iters=20", "--log_interval=1", "--block_size=64", "--batch_size=12"),
    *("--n_layer=4", "--n_head=4", "--n_embd=128", "--dropout=0.0"),
)
ITERATION = re.compile(r"iter (\d+): loss (\S+), time ([\d.]+)ms")
END_OF_TEXT = "-" * 15  # a line of its sample.py
EVALUATION = re.compile(r"step (\d+): train loss (\S+), val loss (\S+)")


@dataclass(frozen=True)
class PeerRun:
    """A run of its train.py that has ended."""

    child: Child
    milliseconds: list[float] = field(repr=False)  # of each iteration it printed
    evaluations: list[tuple[int, float]]  # updates done, and its estimate of the validation loss

    def tokens_per_s(self, tokens: int) -> float:
        """``tokens`` are those of a step. The median of its steps' times, without the first ones."""
        if len(self.milliseconds) < 2:
            raise BenchError("nanoGPT printed too few iterations to time; more --steps")
        return tokens / (median(settled(self.milliseconds)) / 1000)


def parsed(child: Child) -> PeerRun:
    lines = [line for _, line in child.lines]
    times = [float(found[3]) for line in lines if (found := ITERATION.match(line))]
    losses = [(int(found[1]), float(found[3])) for line in lines if (found := EVALUATION.match(line))]
    return PeerRun(child, times, losses)


def check(folder: Path) -> None:
    """Raises BenchError where it is no checkout of nanoGPT."""
    if not folder.is_dir():
        raise BenchError(f"--peer: {folder}: no such folder; give a checkout of nanoGPT")
    for name in FILES:
        if not (folder / name).is_file():
            raise BenchError(f"--peer: {folder}: has no {name}; give a checkout of nanoGPT")


class Peer:
    """A checkout, with a folder of its own to work in: links to its files, and its data."""

    def __init__(self, bench: Bench) -> None:
        assert bench.peer
        self.checkout = bench.peer
        self.folder = bench.work / "peer"
        self.device = (
            ("--device=cuda", "--compile=True") if bench.cuda else ("--device=cpu", "--compile=False")
        )
        self.cuda = bench.cuda
        self.folder.mkdir()
        for name in ("model.py", "train.py", "sample.py", "configurator.py", "config"):
            (self.folder / name).symlink_to(self.checkout / name)
        self.compiled = {"TORCHINDUCTOR_CACHE_DIR": str(bench.work / "compiled-peer")}

    def prepare(self, text: Path) -> None:
        """Its own prepare.py makes its data of the text, which it finds and so does not download."""
        folder = self.folder / "data" / "shakespeare_char"
        folder.mkdir(parents=True)
        (folder / "prepare.py").symlink_to(self.checkout / "data/shakespeare_char/prepare.py")
        shutil.copyfile(text, folder / "input.txt")
        measure.run([sys.executable, str(folder / "prepare.py")], self.folder)

    def prepare_made_up(self, corpus: Path) -> None:
        """Token files that are there, of GPT-2's vocabulary, as dataset made_up."""
        (self.folder / "data").mkdir(exist_ok=True)
        (self.folder / "data" / "made_up").symlink_to(corpus)

    def train(
        self,
        flags: Sequence[str],
        out: str = "out",
        config: str | None = CONFIG,
        compiled: Path | None = None,
    ) -> PeerRun:
        """Run its train.py. ``out`` is the folder of its checkpoint, ``compiled`` where torch keeps what it
        compiles. Raises BenchError where it failed."""
        arguments = [*([config] if config else []), f"--out_dir={out}", *self.device, *flags]
        variables = {"TORCHINDUCTOR_CACHE_DIR": str(compiled)} if compiled else self.compiled
        return parsed(measure.run([sys.executable, "train.py", *arguments], self.folder, variables))

    def told(self, flags: Sequence[str], config: str | None = CONFIG) -> list[str]:
        """What a result says of a command line."""
        return [*([config] if config else []), *self.device, *flags]

    def sample(self, flags: Sequence[str], out: str = "out") -> Child:
        """Run its sample.py, which does not compile unless told to. Raises BenchError where it failed."""
        device = f"--device={'cuda' if self.cuda else 'cpu'}"
        return measure.run([sys.executable, "sample.py", f"--out_dir={out}", device, *flags], self.folder)


def of(bench: Bench) -> Peer | None:
    """The peer with tinyshakespeare prepared; None where none was named."""
    if bench.peer is None:
        return None
    peer = Peer(bench)
    peer.prepare(bench.data)
    return peer
