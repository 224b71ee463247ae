"""Run our programs and nanoGPT's as a user does: each in its own process, with no code compiled earlier."""

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from training.environment import ROOT


class BenchError(ValueError):
    """A reason why nothing can be measured, as one line for the user."""


class Size(NamedTuple):
    n_layer: int
    n_head: int
    n_embd: int
    block_size: int
    dropout: float
    batch_size: int

    def ours(self) -> list[str]:
        """Return the overrides that set this size in our train.py."""
        groups = {"batch_size": "train"}
        return [f"{groups.get(key, 'model')}.{key}={value}" for key, value in self._asdict().items()]

    def nanogpt(self) -> list[str]:
        """Return the flags that set this size in nanoGPT's train.py."""
        return [f"--{key}={value}" for key, value in self._asdict().items()]

    def tokens(self) -> int:
        """Return the number of tokens in a batch."""
        return self.batch_size * self.block_size


SIZES = {  # layers x channels; the vocabulary is tinyshakespeare's 65 characters
    "4x128": Size(4, 4, 128, 64, 0.0, 12),  # nanoGPT's recipe for a CPU, in its README
    "4x256": Size(4, 4, 256, 128, 0.0, 12),
    "6x384": Size(6, 6, 384, 256, 0.2, 64),  # nanoGPT's config/train_shakespeare_char.py
}


def nanogpt_steps(steps: int) -> list[str]:
    return [f"--max_iters={steps}", f"--lr_decay_iters={steps}"]


class Ended(NamedTuple):
    """A program that has run to its end."""

    seconds: float  # from the start of the process to its end
    lines: list[tuple[float, str]]  # what it printed: seconds since the start, line

    def numbers(self, pattern: str) -> list[float]:
        """Return, for each line that matches, the number in the pattern's group."""
        matches = (re.search(pattern, line) for _, line in self.lines)
        return [float(match[1].replace(",", "")) for match in matches if match]


def run(command: Sequence[str], folder: Path, compiled: Path) -> Ended:
    """Run a program of ``folder`` to its end. ``compiled``: the folder of torch's compiled code. Raises
    BenchError if the program fails."""
    environment = os.environ | {"PYTHONUNBUFFERED": "1", "TORCHINDUCTOR_CACHE_DIR": str(compiled)}
    pipe: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    start = time.perf_counter()
    with subprocess.Popen([sys.executable, *command], cwd=folder, env=environment, **pipe) as process:
        lines = [(time.perf_counter() - start, line.rstrip("\n")) for line in process.stdout or ()]
    seconds = time.perf_counter() - start
    if process.returncode:
        last = next((line for _, line in reversed(lines) if line.strip()), "it printed nothing")
        raise BenchError(f"{folder / command[0]} failed: {last}")
    return Ended(seconds, lines)


@dataclass(frozen=True)
class Programs:
    """Our programs, and those of a checkout of nanoGPT in which prepare.py has run; both use its text."""

    peer: Path  # the checkout; nothing is written here
    work: Path
    device: str  # cpu or cuda
    compiled: bool  # whether both compile what they train
    overrides: Sequence[str] = ()  # for our train.py, after all others

    def new_folder(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self.work))

    def train(self, *overrides: str) -> tuple[Ended, list[Path]]:
        """Run our train.py. Return the process and the folder of each run."""
        folder = self.new_folder()
        text = self.peer / "data" / "shakespeare_char" / "input.txt"
        data = ["data=tinyshakespeare", f"data.path={text}", f"data.cache={self.work / 'cache'}"]
        common = [f"runs_dir={folder}", f"device={self.device}", f"compile={str(self.compiled).lower()}"]
        words = [*data, *common, "wandb.mode=disabled", *overrides, *self.overrides]
        ended = run(["train.py", *words], ROOT, self.new_folder())
        return ended, sorted(file.parent for file in folder.glob("*/status.json"))

    def sample(self, *words: str) -> Ended:
        return run(["sample.py", f"device={self.device}", *words], ROOT, self.new_folder())

    def nanogpt_train(self, out: Path, *flags: str) -> Ended:
        """Run nanoGPT's train.py with its recipe for tinyshakespeare; it writes to ``out``."""
        common = [f"--out_dir={out}", f"--device={self.device}", f"--compile={self.compiled}"]
        words = ["train.py", "config/train_shakespeare_char.py", *common, *flags]
        return run(words, self.peer, self.new_folder())

    def nanogpt_sample(self, out: Path, *flags: str) -> Ended:
        """Run nanoGPT's sample.py, uncompiled as by default."""
        words = ["sample.py", f"--out_dir={out}", f"--device={self.device}", *flags]
        return run(words, self.peer, self.new_folder())
