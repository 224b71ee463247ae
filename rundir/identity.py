"""Name a run: its name ends in a hash of the settings that change the result, the tokens, and the source of
its norms and placement. Other code is not in the hash: environment.json has the digest of each file, and a
run that has ended reports which have changed since."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cli.schema import RunConfig
from data.token_files import digest
from interop.pretrained import pretrained
from rundir.code_hash import source
from rundir.run_files import NOT_IN_IDENTITY
from system.errors import ConfigError


def identity(config: RunConfig, precision: str, fingerprint: str) -> dict[str, Any]:
    """Return what is hashed. ``precision`` is fp32 or bf16, not auto; ``fingerprint`` is the tokens'."""
    settings = config.model_dump(
        by_alias=True, include={"seed", "model", "norm", "placement", "optim", "schedule"}
    )
    if config.init_from:
        settings["init_from"] = pretrained(config.init_from).digest
    return settings | {
        "train": config.train.model_dump(exclude=NOT_IN_IDENTITY),
        "precision": precision,
        "tokens": fingerprint,
        "source": {group: source(component.target) for group, component in config.components().items()},
    }


def short_hash(plain: dict[str, Any]) -> str:
    return digest(plain)[:8]


def run_folder(config: RunConfig, precision: str, fingerprint: str) -> Path:
    """Return the folder of this run, which may not exist yet. Raises ConfigError if it is a link to a folder
    of another name, such as another run."""
    short = short_hash(identity(config, precision, fingerprint))
    folder = Path(config.runs_dir) / f"{config.norm.name}-{config.placement.name}-s{config.seed}-{short}"
    if folder.is_symlink() and (target := folder.resolve()).name != folder.name:
        raise ConfigError(f"{folder}: is a link to {target}, a folder of another run; remove the link")
    return folder


def arm_hash(config: RunConfig, precision: str, fingerprint: str, ignored: Iterable[str]) -> str:
    """Return the hash shared by all runs that differ only in seed, learning rate and the ``ignored`` keys."""
    settings = identity(config, precision, fingerprint) | {"seed": None}
    for key in ("optim.learning_rate", *ignored):
        group, _, name = key.partition(".")
        if group in settings:
            settings[group] = {**settings[group], name: None}
        settings["source"].pop(key, None)  # of a norm at another site, such as model.qk_norm
    return short_hash(settings)


def group_name(config: RunConfig, precision: str, fingerprint: str) -> str:
    """Return the name shared by all runs that differ only in their seed."""
    short = short_hash(identity(config, precision, fingerprint) | {"seed": None})
    return f"{config.norm.name}-{config.placement.name}-{short}"
