"""What Hydra composed, as plain data: every norm and placement by its name, with the class and the options
that the YAML of that name gives it."""

import copy
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict

from interop.pretrained import pretrained
from system.errors import ConfigError

SITES = ("final_norm", "embedding_norm", "qk_norm")  # of model.*, which name a norm besides the group's


def plain(composed: DictConfig, hydra: Any) -> dict[str, Any]:
    """The composed config. ``hydra`` is its own part: what was chosen of each group, which folders it looked
    in, and what was on the command line.

    Raises:
        ConfigError: a site names a norm that there is not; or ``init_from`` is no model, or not of that kind.
    """
    if composed.get("model") and composed.get("init_from"):
        composed = begun(
            composed, {override.partition("=")[0].lstrip("+~") for override in hydra.overrides.task}
        )
    runtime = hydra.runtime
    values: dict[str, Any] = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)  # type: ignore[assignment]
    for group, choice in runtime.choices.items():
        if group in ("norm", "placement") and isinstance(values.get(group), dict):
            values[group] = {"_name_": choice.replace("/", "-")} | values[group]
    if isinstance(values.get("model"), dict):
        folders = [Path(source.path) for source in runtime.config_sources if source.schema == "file"]
        for site in {*SITES} & {*values["model"]}:
            values["model"][site] = named_norm(site, values, folders)
    return values


def composed_job(composed: DictConfig) -> dict[str, Any]:
    """The same of what was composed with Hydra's own part, without that."""
    hydra = composed.hydra
    with open_dict(composed):
        del composed["hydra"]
    return plain(composed, hydra)


def begun(composed: DictConfig, given: set[str]) -> DictConfig:
    """It with what the weights of ``init_from`` determine; nobody else's default goes before that.

    Raises:
        ConfigError: ``given`` on the command line was another value; or as ``pretrained``.
    """
    said = pretrained(str(composed.init_from)).said
    composed = copy.deepcopy(composed)
    for key, value in said.architecture.items():
        own, chosen = OmegaConf.select(composed, key), bool({key, "model"} & given)
        part = key == "model.block_size" and isinstance(own, int) and own <= value  # of the context
        if chosen and own != value and not part:
            least = "at most " * (key == "model.block_size")
            raise ConfigError(
                f"{key}: is {own}, but the weights of init_from={composed.init_from} are of a model with "
                f"{least}{value}; leave {key if key in given else 'model'}= out"
            )
        if not (chosen and part):
            OmegaConf.update(composed, key, value)
    for key, value in said.customs.items():
        if key not in given and OmegaConf.select(composed, key) is not None:
            OmegaConf.update(composed, key, value)
    return composed


def named_norm(site: str, values: Mapping[str, Any], folders: Sequence[Path]) -> Any:
    """The norm that ``model.<site>`` names: ``same`` is that of the group, with its options."""
    name = values["model"].get(site)
    if name == "same":
        return values.get("norm")
    if isinstance(name, dict) or (site == "final_norm" and name == "auto"):
        return name
    found = norms_in(tuple(folders))
    if name not in found:
        special = "auto, same" if site == "final_norm" else "same"
        raise ConfigError(
            f"model.{site}: there is no norm {name!r}; choose one of {special}, {', '.join(sorted(found))}"
        )
    options = options_of(found[name])
    if "defaults" in options:
        raise ConfigError(
            f"model.{site}: {found[name]} has a defaults list, which only norm={name} reads; "
            "write its options out"
        )
    there = {key: value for key, value in values.items() if key != "norm"}  # for ${model.bias}
    whole = OmegaConf.merge(OmegaConf.create(there), {"norm": options})
    return {"_name_": name.replace("/", "-")} | OmegaConf.to_container(whole.norm, resolve=True)  # type: ignore[operator]


@cache
def norms_in(folders: tuple[Path, ...]) -> dict[str, Path]:
    """The YAML of each norm by its name; an earlier folder goes before a later one."""
    return {
        str(file.relative_to(folder / "norm").with_suffix("")): file
        for folder in reversed(folders)
        for file in sorted((folder / "norm").rglob("*.yaml"))
    }


@cache
def options_of(file: Path) -> DictConfig | ListConfig:
    """What a YAML file says; a sweep's jobs read it once."""
    return OmegaConf.load(file)
