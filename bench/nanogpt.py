"""nanoGPT, https://github.com/karpathy/nanoGPT: a checkout that the user names, run unchanged.

nanoGPT runs in a folder with links to the checkout and a copy of the data. This project has none of its code.
"""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bench import child
from bench.child import BenchError, Child
from bench.harness import Bench
from bench.ours import KEYS, SIZES

CONFIG = "config/train_shakespeare_char.py"  # nanoGPT's recipe for tinyshakespeare
PREPARE = "data/shakespeare_char/prepare.py"
LINKED = ("train.py", "sample.py", "model.py", "configurator.py", "config")


def flags_of(size: str) -> list[str]:
    """Return the command-line flags for a size in SIZES."""
    return [f"--{key}={value}" for key, value in zip(KEYS, SIZES[size], strict=True)]


# The flags that nanoGPT's README recommends on a CPU. nanoGPT's train.py makes max_iters + 1 updates.
CPU_RECIPE = ["--eval_iters=20", "--log_interval=1", *flags_of("cpu")]
EVAL_BATCHES = 200  # batches of 64 windows: these give the whole split's loss to within about 0.003 nats
# Patterns of lines that nanoGPT's programs print.
LOSS, VAL_LOSS = r"^iter \d+: loss (\S+),", r"^step .* val loss (\S+)"
MILLISECONDS, END_OF_TEXT = r"^iter .* time ([\d.]+)ms", "^(-{15})$"


class Peer:
    """A checkout, linked into a folder of ours with tinyshakespeare. Raises BenchError if that fails."""

    def __init__(self, bench: Bench, checkout: Path) -> None:
        for name in (*LINKED, CONFIG, PREPARE):
            if not (checkout / name).exists():
                raise BenchError(f"--peer: {checkout}: {name} is missing; give a checkout of nanoGPT")
        self.bench, self.folder = bench, bench.folder()
        self.device = "--device=cuda" if bench.cuda else "--device=cpu"
        git = ["git", "--git-dir", str(checkout / ".git"), "rev-parse", "HEAD"]
        commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
        bench.versions["peer"] = {"commit": commit or None}
        bench.note(f"nanoGPT computes in {'bf16' if bench.cuda else 'fp32'}")
        for name in LINKED:
            (self.folder / name).symlink_to(checkout / name)
        data = self.folder / "data" / "shakespeare_char"
        data.mkdir(parents=True)
        (data / "prepare.py").symlink_to(checkout / PREPARE)
        shutil.copyfile(bench.text(), data / "input.txt")  # otherwise prepare.py downloads the text
        child.run([sys.executable, str(data / "prepare.py")], self.folder)

    def train(self, flags: Sequence[str], compiled: Path | None = None) -> Child:
        """Run nanoGPT's train.py and record the command line as the settings of the variant being measured.

        ``compiled`` is the folder of torch's compiled code. Raises BenchError if train.py fails.
        """
        arguments = [CONFIG, self.device, f"--compile={self.bench.cuda}", *flags]
        self.bench.record(arguments)
        cache = {"TORCHINDUCTOR_CACHE_DIR": str(compiled or self.folder / "compiled")}
        return child.run([sys.executable, "train.py", *arguments, "--out_dir=out"], self.folder, cache)

    def run_recipe(self, steps: int, compiled: Path) -> tuple[Child, float]:
        """Run the whole CPU recipe. Return the run and the loss of the last checkpoint.

        The loss is nanoGPT's estimate from EVAL_BATCHES batches of 64 windows, made by a second, untimed run.
        """
        base = [*CPU_RECIPE, f"--max_iters={steps}", "--always_save_checkpoint=True"]
        # nanoGPT saves only when it evaluates, and the last step must be saved.
        interval = f"--eval_interval={steps if steps % 250 else 250}"
        run = self.train([*base, f"--lr_decay_iters={steps}", interval], compiled)
        resume = ["--init_from=resume", f"--eval_interval={steps}", f"--eval_iters={EVAL_BATCHES}"]
        return run, self.train([*base, *resume, "--batch_size=64"]).numbers(VAL_LOSS)[0]

    def sample(self, flags: Sequence[str]) -> Child:
        """Run nanoGPT's sample.py, uncompiled as by default. Raises BenchError if sample.py fails."""
        return child.run([sys.executable, "sample.py", "--out_dir=out", self.device, *flags], self.folder)
