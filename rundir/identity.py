"""A run's name: a hash over all that changes its result."""

import hashlib
import json
from pathlib import Path
from typing import Any

from cli.schema import RunConfig
from interop.pretrained import pretrained
from rundir.code_hash import source
from rundir.schema import WATCHING


def identity(config: RunConfig, precision: str, fingerprint: str) -> dict[str, Any]:
    """What determines the result. ``precision`` is what auto became, ``fingerprint`` that of the tokens."""
    same = config.model_dump(
        by_alias=True, include={"seed", "model", "norm", "placement", "optim", "schedule"}
    )
    if config.init_from:
        same["init_from"] = pretrained(config.init_from).digest
    return same | {
        "train": config.train.model_dump(exclude=WATCHING),
        "precision": precision,
        "tokens": fingerprint,
        "source": {group: source(component.target) for group, component in config.components().items()},
    }


def short_hash(plain: dict[str, Any]) -> str:
    canonical = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:8]


def run_folder(config: RunConfig, precision: str, fingerprint: str) -> Path:
    """Where this run is or will be."""
    short = short_hash(identity(config, precision, fingerprint))
    return Path(config.runs_dir) / f"{config.norm.name}-{config.placement.name}-s{config.seed}-{short}"


def group_name(config: RunConfig, precision: str, fingerprint: str) -> str:
    """The same for all runs that differ in their seed alone."""
    short = short_hash(identity(config, precision, fingerprint) | {"seed": None})
    return f"{config.norm.name}-{config.placement.name}-{short}"
