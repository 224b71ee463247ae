"""Runs with chosen losses, loaded; and those of a fair comparison, of which two keys were tuned."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from comparison.load import Run, load
from tests.helpers.run_folders import made

FAR = "optim.learning_rate=1e-2 model.init=xavier"
NEAR = "optim.learning_rate=3e-3 model.init=gpt2"


def role(
    name, tuning, keys=("optim.learning_rate", "model.init"), seeds=(0, 1), written="2026-01-01"
) -> dict[str, object]:
    return {"role": name, "tuning": tuning, "keys": [*keys], "seeds": [*seeds], "written": written}


def fair_runs(folder, norm, best, ends, borrowed=None, worse=None, worst=2.1):
    """Return trials of two settings in two rounds, compared runs at ``best``, and runs at the baseline's.
    ``worst``: the loss at the settings that are not the best; None: they diverge."""
    trials = {
        f"norm={norm} train.steps=10 {each}": [2.0 if each == best else worst]
        for each in (worse or FAR, NEAR)
    }
    trials |= {f"norm={norm} train.steps=20 {best}": [2.0, 2.0]}
    compared = {f"norm={norm} train.steps=20 {best}": ends}
    at_others = {f"norm={norm} train.steps=20 {NEAR}": borrowed} if borrowed else {}
    return [
        *several(folder / "a", trials, roles=[role("trial", norm)]),
        *several(folder / "b", compared, first=10, roles=[role("compared", norm)]),
        *several(folder / "c", at_others, first=10, roles=[role("borrowed", norm)]),
    ]


def several(
    parent: Path, losses: Mapping[str, list[float | None]], first: int = 0, **options: Any
) -> list[Run]:
    """Write and load runs of each command line that ended with these losses, at seeds first, first + 1, …"""
    return [
        load(made(parent, *arguments.split(), f"seed={seed}", final=loss, **options))[0]
        for arguments, by_seed in losses.items()
        for seed, loss in enumerate(by_seed, first)
    ]
