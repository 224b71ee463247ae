"""Convert the config that Hydra composed to plain data: each norm and placement has a name, a class and
options, from the YAML file of that name."""

import copy
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf, open_dict

from interop.pretrained import pretrained
from system.errors import ConfigError
from system.files import LARGEST, small_text

load_yaml = cache(OmegaConf.load)  # cached, as the jobs of a sweep read the same files
MOST_ALIASES = 20  # in a YAML file of the user's
SITES = ("final_norm", "embedding_norm", "qk_norm")  # keys of model.* whose value names a norm


def plain(composed: DictConfig, settings: Any) -> dict[str, Any]:
    """Return the composed config as plain data. ``settings`` is Hydra's part of the config: the choice of
    each group, the searched folders, the command line. Raises ConfigError."""
    if composed.get("model") and composed.get("init_from"):
        typed_keys = {override.partition("=")[0].lstrip("+~") for override in settings.overrides.task}
        composed = with_architecture(composed, typed_keys)
    runtime = settings.runtime
    folders = [Path(source.path) for source in runtime.config_sources if source.schema == "file"]
    check_names(tuple(folders))
    values: dict[str, Any] = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)  # type: ignore[assignment]
    for group, choice in runtime.choices.items():
        if group in ("norm", "placement") and isinstance(values.get(group), dict):
            values[group] = {"_name_": choice.replace("/", "-")} | values[group]
    if isinstance(values.get("model"), dict):
        for site in {*SITES} & {*values["model"]}:
            values["model"][site] = named_norm(site, values, composed, folders)
    return values


@cache
def check_names(folders: tuple[Path, ...]) -> None:
    """Raise ConfigError if a choice has the name of one in an earlier folder, which Hydra would use.
    The first folder is conf/."""
    for later, earlier in combinations(reversed(folders), 2):
        for file in group_files(later, folders[0]):
            same = earlier / file.relative_to(later)
            if same.exists() and not same.samefile(file):
                raise ConfigError(
                    f"--config-dir: {file}: {same} has the same name and would be used; rename your file"
                )


def group_files(folder: Path, conf: Path) -> list[Path]:
    """Return a folder's YAML files for the groups of ``conf``. The folder's other files may be very many."""
    groups = [group.name for group in conf.iterdir() if group.is_dir()]
    return sorted(file for group in groups for file in (folder / group).rglob("*.yaml"))


def check_aliases(folder: Path, conf: Path) -> None:
    """Raise ConfigError if a config in a folder of the user's has so many YAML aliases that few lines may
    stand for any amount of data. ``conf`` has the groups. What cannot be read is left to Hydra, which names
    it if it is used."""
    for file in group_files(folder, conf):
        events: list[Any] = []
        with suppress(yaml.YAMLError, ValueError, OSError):
            text = small_text(file, LARGEST)
            events += yaml.parse(text, yaml.SafeLoader) if "*" in text else []
        if sum(isinstance(event, yaml.AliasEvent) for event in events) > MOST_ALIASES:
            raise ConfigError(f"{file}: has more than {MOST_ALIASES} aliases; write the values out")


def composed_job(composed: DictConfig) -> dict[str, Any]:
    """Return a config as plain data; ``composed`` also holds Hydra's part, which is left out."""
    settings = composed.hydra
    with open_dict(composed):
        del composed["hydra"]
    return plain(composed, settings)


def with_architecture(composed: DictConfig, typed_keys: set[str]) -> DictConfig:
    """Return the config with the values that the weights of ``init_from`` determine, which override every
    default. Raises ConfigError if one of ``typed_keys`` has a different value."""
    config = pretrained(str(composed.init_from)).config
    composed = copy.deepcopy(composed)
    for key, value in config.architecture.items():
        current, is_typed = OmegaConf.select(composed, key), bool({key, "model"} & typed_keys)
        fits = key == "model.block_size" and isinstance(current, int) and current <= value
        if is_typed and current != value and not fits:
            bound = "at most " if key == "model.block_size" else ""
            raise ConfigError(
                f"{key}: is {current}, but the weights of init_from={composed.init_from} are of a model with "
                f"{bound}{value}; leave {key if key in typed_keys else 'model'}= out"
            )
        if not (is_typed and fits):
            OmegaConf.update(composed, key, value)
    for key, value in config.matching_defaults.items():
        if key not in typed_keys and OmegaConf.select(composed, key) is not None:
            OmegaConf.update(composed, key, value)
    return composed


def named_norm(site: str, values: Mapping[str, Any], composed: DictConfig, folders: Sequence[Path]) -> Any:
    """Return the norm that ``model.<site>`` names; ``same`` means the run's norm, with its options."""
    name = values["model"].get(site)
    if name == "same":
        return values.get("norm")
    if isinstance(name, dict) or (site == "final_norm" and name == "auto"):
        return name
    files = norm_files(tuple(folders))
    if not isinstance(name, str) or name not in files:
        names = ["auto", "same", *sorted(files)] if site == "final_norm" else ["same", *sorted(files)]
        raise ConfigError(f"model.{site}: there is no norm {name!r}; choose one of {', '.join(names)}")
    options = load_yaml(files[name])
    if not isinstance(options, DictConfig):
        raise ConfigError(f"model.{site}: {files[name]} is no mapping of options; correct the file")
    if "defaults" in options:
        raise ConfigError(
            f"model.{site}: {files[name]} has a defaults list, which only norm={name} reads; "
            "write its options out"
        )
    others = [str(key) for key in composed if key != "norm"]  # an option may be ${model.bias}
    merged = OmegaConf.merge(OmegaConf.masked_copy(composed, others), {"norm": options})
    return {"_name_": name.replace("/", "-")} | OmegaConf.to_container(
        merged.norm, resolve=True, throw_on_missing=True
    )  # type: ignore[operator]


@cache
def norm_files(folders: tuple[Path, ...]) -> dict[str, Path]:
    """Return the YAML file of each norm by name; an earlier folder takes precedence."""
    return {
        str(file.relative_to(folder / "norm").with_suffix("")): file
        for folder in reversed(folders)
        for file in sorted((folder / "norm").rglob("*.yaml"))
    }
