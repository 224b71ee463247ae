"""Compose a run's config with Hydra: conf/ and the command line -> plain data -> ``RunConfig``.

For a norm or a placement, the plain data are its name, and the class and options in the YAML file of that
name.
"""

import copy
import itertools
import os
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from cli.errors import CONF, checked, no_such_choice
from cli.schema import SITES, RunConfig
from data.errors import ConfigError

FLAGS = ("-m", "--multirun", "--resolve", "--run", "-r", "--help", "-h", "--hydra-help", "--version")
OPTIONS = ("--config-dir", "-cd", "--config-name", "-cn", "--cfg", "-c", "--package", "-p")


# ---------------------------------------------------------------------------------------------------
# The command line


def arguments_for_hydra(words: Sequence[str]) -> list[str]:
    """Return the words with Hydra's options before the overrides, as Hydra rejects a mixture. Raises
    ConfigError for an option that Hydra does not have, which is usually a key that was typed as an option."""
    options: list[str] = []
    overrides: list[str] = []
    remaining = iter(words)
    for word in remaining:
        name, equals, value = word.partition("=")
        if word in FLAGS or name in ("--info", "-i"):
            options.append(word)
        elif name in OPTIONS:
            options += [name, os.path.expanduser(value if equals else next(remaining, ""))]
        elif word.startswith("-"):
            value = value or next((each for each in remaining if not each.startswith("-")), "VALUE")
            raise ConfigError(f"{name}: write {name.lstrip('-')}={value}; --help lists every key")
        else:
            overrides.append(word)
    return options + overrides


# ---------------------------------------------------------------------------------------------------
# Configs


def validated(composed: DictConfig) -> RunConfig:
    """Return the config that Hydra composed for this job. Raises ConfigError."""
    return checked(RunConfig, plain(composed, HydraConfig.get()))


def arguments_of_this_run() -> list[str]:
    """Return the arguments that start this run alone, even if a sweep started it; [] if Hydra did not start
    this process."""
    if not HydraConfig.initialized():
        return []
    settings = HydraConfig.get()
    folders = [each.path for each in settings.runtime.config_sources if each.provider == "command-line"]
    return [*(f"--config-dir={folder}" for folder in folders), *settings.overrides.task]


def help_on_keys(words: list[str]) -> str:
    """Return the help on train.py's keys: each group with its choices, and the text of the files in conf/
    that ``words`` choose. These files explain every key and have its default."""
    overrides = [override for override, *_ in values_of(words).values()]  # if a key has several, the first
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        settings = hydra.compose("config", overrides, return_hydra_config=True).hydra
    own_keys = (CONF / "config.yaml").read_text("utf-8").partition("\n\n")[2].partition("\nhydra:")[0]
    texts = {}
    for group, choice in reversed(settings.runtime.choices.items()):  # as conf/config.yaml lists them
        if not group.startswith("hydra/"):
            files = files_of(group, folders_of(settings))
            text = files[choice].read_text("utf-8") if choice else ""
            texts[f"{group}={choice or 'null'}, one of {', '.join(files)}"] = text
    texts["keys that belong to no group"] = own_keys
    return "\n".join(f"{title}\n{textwrap.indent(text, '    ')}" for title, text in texts.items())


@contextmanager
def composing(config_dir: str | None) -> Iterator[OverridesParser]:
    """Context manager in which configs can be composed. Yield a parser; its glob(*) finds the choices of the
    user's folder, too."""
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        if config_dir:
            folders, own = loader.get_search_path(), f"file://{Path(config_dir).resolve()}"
            folders.prepend("command-line", own, anchor=SearchPathQuery(provider="schema"))
            loader.repository.initialize_sources(folders)  # type: ignore[attr-defined]
        yield OverridesParser.create(loader)


def values_of(words: list[str]) -> dict[str, list[str]]:
    """Return a command line's overrides by key, one override for each value. --config-dir becomes an
    override, too. Raises ConfigError and Hydra's errors."""
    words = [word for word in arguments_for_hydra(words) if word not in FLAGS]
    config_dir = words[1] if words[:1] == ["--config-dir"] else None
    overrides = [*words[2:], *search_path(config_dir)] if config_dir else words
    with composing(config_dir) as parser:
        return alternatives(parser.parse_overrides(overrides))


def choices(words: list[str]) -> dict[str, RunConfig]:
    """Return a config for each combination of the values in a command line, keyed by the overrides that
    differ: ``norm=none,layernorm`` gives two; without alternatives there is one, keyed by "". Raises
    ConfigError and Hydra's errors."""
    values = values_of(words)
    jobs = [list(job) for job in itertools.product(*values.values())]
    names = [" ".join(override for override in job if len(values[key_of(override)]) > 1) for job in jobs]
    return dict(zip(names, compose_all(jobs), strict=True))


def search_path(config_dir: str | None) -> list[str]:
    """Return --config-dir as an override. Raises OSError if the folder does not exist."""
    if config_dir is None:
        return []
    os.stat(config_dir)  # Hydra would only warn
    return [f'hydra.searchpath=["file://{Path(config_dir).resolve()}"]']


def compose_all(jobs: Sequence[list[str]]) -> list[RunConfig]:
    """Return the config of each list of overrides, inside or outside of a Hydra job."""
    in_job = GlobalHydra.instance().is_initialized()
    with nullcontext() if in_job else hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        composed = [hydra.compose("config", job, return_hydra_config=True) for job in jobs]
    return [checked(RunConfig, without_hydras_part(each)) for each in composed]


def without_hydras_part(composed: DictConfig) -> dict[str, Any]:
    """Remove Hydra's part from a composed config, and return the rest as plain data."""
    keys = [str(key) for key in composed if key != "hydra"]
    return plain(OmegaConf.masked_copy(composed, keys), composed.hydra)


def alternatives(parsed: list[Override]) -> dict[str, list[str]]:
    """Return, by key, one override per value: ``seed=0,1`` gives two. The last override of a key counts.
    Raises ConfigError for an interval, and if a pattern or range has no value."""
    values = {}
    for override in parsed:
        typed = override.get_key_element()
        key, line = key_of(typed), override.input_line or ""
        values[key] = [line]
        if override.is_sweep_override():
            if not override.is_discrete_sweep():
                raise ConfigError(f"{key}: an interval has no list of values; write {key}=1e-3,1e-2")
            values[key] = [f"{typed}={value}" for value in override.sweep_string_iterator()]
            if not values[key]:
                raise ConfigError(f"{line}: names no value; give another pattern or range")
    return values


def key_of(override: str) -> str:
    """Return the key of an override: ``seed`` for ``++seed=1``, but ``~seed`` for the deletion ``~seed``."""
    return override.partition("=")[0].lstrip("+")


def quoted(key: str, value: str) -> str:
    """Return the override that sets a key to exactly this text, whatever characters are in it."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("${", "\\${")
    return f'{key}="{escaped}"'


# ---------------------------------------------------------------------------------------------------
# Plain data


def plain(composed: DictConfig, settings: Any) -> dict[str, Any]:
    """Return a composed config as plain data. ``settings`` is Hydra's part of the config: the choice of each
    group, the searched folders, the command line. Raises ConfigError."""
    if composed.get("init_from"):
        composed = with_architecture(composed, {key_of(each).lstrip("~") for each in settings.overrides.task})
    folders = folders_of(settings)
    values: dict[str, Any] = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)  # type: ignore[assignment]
    for group in ("norm", "placement"):
        files_of(group, folders)  # raises if a name occurs twice
        if isinstance(values.get(group), dict):
            values[group] = {"_name_": settings.runtime.choices[group].replace("/", "-")} | values[group]
    for site in SITES:
        values["model"][site] = named_norm(site, values, composed, files_of("norm", folders))
    return values


def folders_of(settings: Any) -> tuple[Path, ...]:
    """Return conf/ and the folders of --config-dir, in which Hydra searches."""
    return tuple(Path(each.path) for each in settings.runtime.config_sources if each.schema == "file")


@cache
def files_of(group: str, folders: tuple[Path, ...]) -> dict[str, Path]:
    """Return the YAML files of a group's choices, by name. Raises ConfigError if two folders have a file of
    the same name: Hydra would silently take the one in conf/."""
    files: dict[str, Path] = {}
    for folder in dict.fromkeys(path.resolve() for path in folders):
        for file in sorted((folder / group).rglob("*.yaml")):
            name = str(file.relative_to(folder / group).with_suffix(""))
            if files.setdefault(name, file) != file:
                raise ConfigError(f"--config-dir: {file}: {files[name]} has the same name; rename your file")
    return files


def named_norm(site: str, values: Mapping[str, Any], composed: DictConfig, files: Mapping[str, Path]) -> Any:
    """Return the norm that ``model.<site>`` names; ``same`` means the run's norm, with its options."""
    name = values["model"].get(site)
    if name == "same":
        return values.get("norm")
    if isinstance(name, dict) or (site == "final_norm" and name == "auto"):
        return name
    if not isinstance(name, str) or name not in files:
        names = ["auto"] * (site == "final_norm") + ["same", *sorted(files)]
        raise ConfigError(no_such_choice(f"model.{site}", str(name), names))
    options = OmegaConf.load(files[name])
    if not isinstance(options, DictConfig) or "defaults" in options:
        raise ConfigError(f"model.{site}: {files[name]} is not a plain list of options; write them out")
    others = [str(key) for key in composed if key != "norm"]  # for options such as ${model.bias}
    merged = OmegaConf.merge(OmegaConf.masked_copy(composed, others), {"norm": options})
    resolved: Any = OmegaConf.to_container(merged.norm, resolve=True, throw_on_missing=True)
    return {"_name_": name.replace("/", "-")} | resolved


def with_architecture(composed: DictConfig, typed_keys: set[str]) -> DictConfig:
    """Return the config with the values that the weights of ``init_from`` determine; these override the
    defaults. Raises ConfigError if one of ``typed_keys`` has a different value, or if the weights name a
    class of another project."""
    from interop.pretrained import pretrained  # here: few runs need it

    weights = pretrained(os.path.expanduser(str(composed.init_from)))
    composed = copy.deepcopy(composed)
    for key, value in weights.architecture.items():
        current, typed = OmegaConf.select(composed, key), {key, "model"} & typed_keys
        is_size = key == "model.block_size"
        if typed and is_size and isinstance(current, int) and current <= value:
            continue  # a shorter context than the weights have
        if typed and current != value:
            raise ConfigError(
                f"{key}: is {current}, but the weights of init_from={composed.init_from} are of a model with "
                f"{'at most ' * is_size}{value}; leave {max(typed)}= out"
            )
        OmegaConf.update(composed, key, value)
    for key, value in weights.defaults.items():
        if key in typed_keys or OmegaConf.select(composed, key) is None:
            continue
        if isinstance(value, dict):  # a norm or the placement; the user may have typed some of its options
            target, options = value["_target_"], [each for each in typed_keys if each.startswith(f"{key}.")]
            if not re.fullmatch(r"model(\.\w+)+|torch\.nn\.\w+", target):
                advice = f"if you trust it, give {key}=…"
                raise ConfigError(f"init_from: {weights.name} names the class {target}; {advice}")
            value = value | {
                each.removeprefix(f"{key}."): OmegaConf.select(composed, each) for each in options
            }
        OmegaConf.update(composed, key, value, merge=False, force_add=True)
    return composed
