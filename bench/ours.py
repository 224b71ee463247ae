"""Run our programs as a user does, and list the sizes at which ours and nanoGPT's are measured."""

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from bench import child
from bench.child import BenchError, Child
from bench.harness import Bench
from training.environment import ROOT
from training.run_folder import read_json

QUIET = ("train.eval_every=0", "train.checkpoint_every=0")  # nothing runs between the timed steps
KEYS = ("n_layer", "n_head", "n_embd", "block_size", "dropout", "batch_size")
SIZES: dict[str, tuple[float, ...]] = {  # at every size the vocabulary is tinyshakespeare's 65 characters
    "nano": (4, 4, 128, 64, 0.0, 32),  # our default run: conf/model/nano.yaml, conf/config.yaml
    "cpu": (4, 4, 128, 64, 0.0, 12),  # nanoGPT's recipe for a CPU, in its README
    "mid": (4, 4, 256, 128, 0.0, 12),
    "baby": (6, 6, 384, 256, 0.2, 64),  # nanoGPT's config/train_shakespeare_char.py
    "gpt2": (12, 12, 768, 1024, 0.0, 12),  # GPT-2's; needs a GPU
}


def size_overrides(name: str) -> list[str]:
    """Return the overrides that set a size of SIZES."""
    pairs = zip(KEYS, SIZES[name], strict=True)
    return [f"{'train' if key == 'batch_size' else 'model'}.{key}={value}" for key, value in pairs]


@dataclass(frozen=True)
class Run:
    """A finished run of train.py, or a sweep."""

    child: Child
    start: float  # time.time() at which the process started
    folders: list[Path] = field(repr=False)  # one for each run

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of the first run's metrics.jsonl."""
        lines = (self.folders[0] / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]

    def first_step(self) -> float:
        """Return the seconds from the start of the process to the end of step 0."""
        rows, written = self.rows(), (self.folders[0] / "metrics.jsonl").stat().st_mtime
        return written - self.start - (rows[-1]["seconds"] - rows[0]["seconds"])  # written: with the last row

    def final_loss(self) -> float:
        """Return val/full_loss in nats per token; infinity for a run that diverged."""
        final = read_json(self.folders[0] / "status.json").get("final")
        return float("inf") if final is None else float(final)


def train(
    bench: Bench,
    overrides: Sequence[str],
    *,
    data: Sequence[str] = (),
    compiled: Path | None = None,
) -> Run:
    """Run ``python train.py`` and record its command line as the settings of the variant being measured.

    By default the data is tinyshakespeare, and all runs of a benchmark share a folder of compiled code.
    Raises BenchError if it fails.
    """
    runs_dir = bench.folder()
    data = data or ["data=tinyshakespeare", f"data.path={bench.text()}"]
    locations = [f"runs_dir={runs_dir}", f"data.cache={bench.work / 'cache'}", "wandb.mode=disabled"]
    command = [sys.executable, str(ROOT / "train.py"), *data, *locations, *overrides]
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(compiled or bench.work / "compiled")}
    start = time.time()
    finished = child.run(command, bench.work, cache)
    folders = sorted(file.parent for file in runs_dir.glob("[!.]*/status.json"))
    bench.record([data[0], "data.path=PATH", "wandb.mode=disabled", *overrides])
    if bench.variant:
        environment = read_json(folders[0] / "environment.json")
        bench.note(f"{bench.variant}: precision {environment['precision']}, compile {environment['compile']}")
    return Run(finished, start, folders)


def warm_up(bench: Bench) -> None:
    """Prepare the data and compile our modules to bytecode, so that no measurement includes this work."""
    train(bench, ["model.n_layer=1", "train.steps=1", "train.eval_windows=1", "precision=fp32"])


def drop_warm_up(values: Sequence[Any]) -> Sequence[Any]:
    """Return the values without the first ten, or a third if they are few: caches and allocators warm up."""
    return values[min(10, (len(values) + 2) // 3) :]


def tokens_per_s(rows: Sequence[dict[str, Any]]) -> tuple[float, float]:
    """Return the median rate after the warm-up, and the mean rate including the time of statistics."""
    timed = [row for row in rows if "train/tokens_per_s" in row]
    if len(timed) < 2:
        raise BenchError("too few steps to time; give more --steps")
    kept = drop_warm_up(timed)
    start, end = timed[-len(kept) - 1], kept[-1]
    with_statistics = (end["tokens"] - start["tokens"]) / (end["seconds"] - start["seconds"])
    return median(row["train/tokens_per_s"] for row in kept), with_statistics
