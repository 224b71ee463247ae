"""Run folders with chosen numbers, in the format of real runs, so the results of comparisons are known."""

import json
import zlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.conftest import EARLIER_DEFAULTS, configured

ASKED = {mode: {"cuts": 63, "all_cuts": 63, "rows": 32, "cut_rows": 0.1} for mode in ("train", "eval")}
CLEAN = {"causal": True, "independent_rows": True, "reason": None, "context": 64, "asked": ASKED}
LEAKS = {mode: {"future": value, "rows": value} for mode, value in (("train", 0.4), ("eval", 0.0))}
NOT_IN_GROUP = ("seed", "runs_dir")
FACTS = {"fingerprint": "f" * 64, "train_tokens": 4_000_000, "val_tokens": 400_000, "vocab_size": 74}

# Arms share the noise of five seeds, so that a small constant difference is a certain one.
BASE = [2.00, 2.05, 1.98, 2.03, 2.01]
ARMS = {  # the losses of arms of every outcome, by seed
    "norm=layernorm": BASE,
    "norm=rmsnorm": [loss - 0.10 + noise for loss, noise in zip(BASE, (0, 1e-3, 0, 1e-3, 0), strict=True)],
    "norm=dyt": [loss + 0.10 + noise for loss, noise in zip(BASE, (0, 1e-3, 0, 1e-3, 0), strict=True)],
    "norm=derf": [loss + noise for loss, noise in zip(BASE, (2e-4, -1e-4, 1e-4, -2e-4, 0), strict=True)],
    "norm=groupnorm": [2.10, 1.95, 2.08, 1.94, 2.07],
    "norm=none": [None, None, 2.9, 2.9, 2.9],
    "norm=batchnorm": [1.0] * 5,  # LEAKS in training
}


@cache
def composed(*overrides: str) -> str:
    defaults = ("train.steps=1000", *EARLIER_DEFAULTS, "model.init_scale=auto")  # auto: as in a run of today
    return configured(*defaults, *overrides).model_dump_json(by_alias=True)


def made(
    parent: Path,
    *overrides: str,
    final: float | None = 2.0,
    curve: Mapping[int, Mapping[str, Any]] | None = None,
    halves: bool = True,
    **environment: Any,
) -> Path:
    """Write the folder of a run with these overrides that ended at the loss ``final``; None: diverged. The
    losses on the halves of the validation split are the same; without them, the run is of an earlier version.
    """
    seeds = [word for word in overrides if word.startswith("seed=")]
    config = json.loads(composed(*(word for word in overrides if word not in seeds)))
    config["seed"] = int(seeds[-1].removeprefix("seed=")) if seeds else config["seed"]  # composing is slow
    others = {key: value for key, value in config.items() if key not in NOT_IN_GROUP}
    number = zlib.crc32(json.dumps(others).encode())
    group = f"{config['norm']['_name_']}-{config['placement']['_name_']}-{number:x}"
    group = environment.pop("group", group)
    folder = parent / f"{group}-s{config['seed']}"
    folder.mkdir(parents=True)
    per_step = config["train"]["batch_size"] * config["model"]["block_size"]
    last = config["train"]["steps"]
    table = {0: {"train/loss": 4.3, "val/loss": 4.3}} | dict(curve or {})
    names = ["val/full_loss", "val/loss", *["val/select_loss", "val/report_loss"] * halves]
    end = dict.fromkeys(names, final) if final is not None else {"train/loss": "NaN"}
    table[last] = dict(table.get(last, {})) | end
    rows = [{"step": s, "tokens": s * per_step, "seconds": s / 10} | row for s, row in sorted(table.items())]
    state = {"state": "diverged" if final is None else "finished", "step": last, "final": final}
    leaks = config["norm"]["_name_"] == "batchnorm"
    answer = CLEAN | ({"causal": False} | LEAKS if leaks else {})
    packages = {"torch": "2.13.0", "numpy": "2.4.6"}
    machine = {"group": group, "precision": "fp32", "device": "cpu", "threads": 1, "compile": False}
    machine |= {"processor": "a processor", "python": "3.11.7", "packages": packages, "parameters": 800_000}
    machine |= {"data": FACTS, "code": {"train.py": "0123"}, "overrides": list(overrides), "git": None}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "status.json").write_text(
        json.dumps(state | {"reason": None if final is not None else "it grew"})
    )
    (folder / "environment.json").write_text(json.dumps(machine | environment))
    (folder / "certificate.json").write_text(json.dumps({"start": answer, "end": answer}))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder
