"""Running our train.py and sample.py as a user does, and reading what they leave. Nothing to run here."""

import json
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from bench import measure
from bench.measure import BenchError, Child
from bench.report import Bench
from rundir.environment import ROOT
from rundir.run_files import read_json

QUIET = ("train.eval_every=0", "train.checkpoint_every=0")  # nothing between the steps that are timed
Row = dict[str, Any]  # of metrics.jsonl


@dataclass
class FirstStep:
    """Watches for the first row of metrics.jsonl, which is that of step 0 and is written when it is done."""

    runs_dir: Path
    seconds: float = math.nan  # from the start of the process

    def __call__(self, pid: int, seconds: float) -> None:
        if math.isnan(self.seconds) and any(
            file.stat().st_size for file in self.runs_dir.glob("[!.]*/metrics.jsonl")
        ):
            self.seconds = seconds


@dataclass(frozen=True)
class Run:
    """A run of train.py that has ended, or a sweep of them."""

    child: Child
    first_step: float  # seconds to the end of the first step; of a run that logs each step
    folders: list[Path] = field(repr=False)

    @property
    def folder(self) -> Path:
        return self.folders[0]

    def rows(self, number: int = 0) -> list[Row]:
        """Of metrics.jsonl, of one of its runs."""
        lines = (self.folders[number] / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]

    def final_loss(self) -> float:
        """val/full_loss; infinity of a run that diverged."""
        final = read_json(self.folder / "status.json").get("final")
        return float(final) if final is not None else math.inf

    def environment(self) -> dict[str, Any]:
        return read_json(self.folder / "environment.json")


def corpus(bench: Bench) -> list[str]:
    """Overrides for tinyshakespeare."""
    return ["data=tinyshakespeare", f"data.path={bench.data}"]


def train(
    bench: Bench,
    overrides: Sequence[str],
    *,
    data: Sequence[str] | None = None,
    runs_dir: Path | None = None,
    compiled: Path | None = None,
    watch: Any = None,
) -> Run:
    """Run ``python train.py``. A run of a finished one's ``runs_dir`` is that run again.

    Args:
        overrides: the command line, besides where data and runs are and ``wandb.mode=disabled``.
        data: overrides that name the data; default: tinyshakespeare.
        runs_dir: a folder; default: a new one.
        compiled: where torch keeps what it compiles; default: one folder for the whole benchmark.
        watch: see ``measure.run``; default: look for the first step.

    Raises:
        BenchError: it failed.
    """
    runs_dir = runs_dir or bench.work / "runs" / str(sum(1 for _ in (bench.work / "runs").glob("*")))
    runs_dir.mkdir(parents=True, exist_ok=True)
    places = [f"runs_dir={runs_dir}", f"data.cache={bench.work / 'cache'}", "wandb.mode=disabled"]
    arguments = [*(corpus(bench) if data is None else data), *places, *overrides]
    first = FirstStep(runs_dir)
    child = measure.run(
        [sys.executable, str(ROOT / "train.py"), *arguments],
        bench.work,
        {"TORCHINDUCTOR_CACHE_DIR": str(compiled or bench.work / "compiled")},
        watch or first,
    )
    folders = sorted(file.parent for file in runs_dir.glob("[!.]*/status.json"))
    if not folders:
        raise BenchError("train.py left no run")
    run = Run(child, first.seconds, folders)
    if not any(override.startswith("precision=") for override in overrides):
        became = run.environment()["precision"]
        bench.note(
            f"ours ran in precision auto, {became} here; nanoGPT in {'bf16' if bench.cuda else 'fp32'}"
        )
    return run


def warm_up(bench: Bench) -> None:
    """Prepare the data, once, and let Python compile our modules: no measurement has that in it."""
    train(bench, ["model.n_layer=1", "train.steps=1", "train.eval_windows=1", "precision=fp32"])


def told(overrides: Sequence[str], data: str = "data=tinyshakespeare") -> list[str]:
    """What a result says of a command line: all of it but the paths of this machine."""
    return [data, "data.path=PATH", "wandb.mode=disabled", *overrides]


def tokens_per_s(rows: Sequence[Row], warm_up: int = 10) -> tuple[float, float]:
    """Of a run's rows: the median of ``train/tokens_per_s`` after the first steps; and tokens over seconds
    from there to the last row with a loss, with all that happened in between: statistics, too."""
    timed = [row for row in rows if "train/tokens_per_s" in row]
    if len(timed) < 2:
        raise BenchError("too few rows to time; more --steps")
    first = min(warm_up, timed[-1]["step"] // 3)
    kept = [row for row in timed if row["step"] > first] if len(timed) > 3 else timed[1:]
    before = timed[timed.index(kept[0]) - 1]
    seconds = kept[-1]["seconds"] - before["seconds"]
    return median(row["train/tokens_per_s"] for row in kept), (
        kept[-1]["tokens"] - before["tokens"]
    ) / seconds


def sample(bench: Bench, folder: Path, arguments: Sequence[str]) -> Child:
    """Run ``python sample.py`` on a run's last checkpoint. Raises BenchError where it failed."""
    command = [sys.executable, str(ROOT / "sample.py"), f"run={folder}", "which=last", *arguments]
    return measure.run(command, bench.work)


def printed_rate(child: Child) -> float:
    """Tokens a second, as sample.py says at its end. Raises BenchError where it does not."""
    for _, line in reversed(child.lines):
        if found := re.search(r"tokens, ([\d,]+) tokens/s$", line):
            return float(found[1].replace(",", ""))
    raise BenchError("sample.py did not say how fast it was")


def printed_precision(child: Child) -> str:
    """As sample.py says at its beginning. Raises BenchError where it does not."""
    for _, line in child.lines:
        if found := re.search(r", step [\d,]+, \w+, (\w+)$", line):
            return found[1]
    raise BenchError("sample.py did not say in which precision it draws")


def made_up_corpus(folder: Path, n_tokens: int, vocab_size: int, sparse: bool = False) -> list[str]:
    """A prepared corpus of made-up tokens, in nanoGPT's layout; returns the overrides that name it.

    Its vocabulary is of single characters, so that no tokenizer needs a download. With ``sparse``, the
    training split is a hole of that size: all tokens are 0, and the disk holds nothing.
    """
    import numpy as np

    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    for split, count in (("train", n_tokens), ("val", 20_000)):
        with (folder / f"{split}.bin").open("wb") as file:
            if sparse and split == "train":
                file.truncate(2 * count)
            else:
                random.integers(vocab_size, size=count, dtype=np.uint16).tofile(file)
    start = 0x10000  # code points from here on have no surrogates among them
    chars = "".join(map(chr, range(start, start + vocab_size)))
    meta = {"tokenizer": {"kind": "char", "chars": chars}, "dtype": "uint16"}
    (folder / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
    return ["data=prepared", f"data.path={folder}"]
