"""The command line of our programs: Hydra's, but text arrives as it is and errors are one line.

@cli.command("config", RunConfig)
def main(config: RunConfig) -> float | None: ...
"""

import argparse
import gc
import itertools
import math
import os
import re
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeVar

import hydra
import yaml
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString
from omegaconf import DictConfig

from cli import job_record, messages
from cli.compose import composed_job, plain
from system import launch, signals, terminal
from system.errors import ConfigError
from system.validate import Checked, checked, keys

CONF = Path(__file__).parents[1] / "conf"
TEXT_KEYS = (
    *(
        "prompt",
        "prompt_file",
        "checkpoint",
        "run",
        "runs_dir",
        "init_from",
        "out",
        "data.path",
        "data.cache",
    ),
    *("hydra.sweep.dir", "wandb.project", "wandb.entity", "wandb.group", "wandb.dir"),
)
# Options that take no value.
ALONE = ("-m", "--multirun", "--resolve", "--run", "-r", "--help", "-h", "--version")
Config = TypeVar("Config", bound=Checked)


def command(
    config_name: str, kind: type[Config], outlives_readers: bool = False
) -> Callable[[Callable[[Config], Any]], Callable[[], None]]:
    """Make ``main(config)`` a program: compose conf/<config_name>.yaml with the command line and check it.

    Where whoever reads its output goes, it ends; or, with ``outlives_readers``, goes on.
    """

    def decorate(main: Callable[[Config], Any]) -> Callable[[], None]:
        failures = []

        @hydra.main(version_base="1.3", config_path=str(CONF), config_name=config_name)
        def job(composed: DictConfig) -> Any:
            hydra = HydraConfig.get()
            folder = (
                None if hydra.sweep.subdir == "." else Path(hydra.runtime.output_dir)
            )  # of a job of our sweeps
            with job_record.kept(folder) as outcome:
                try:
                    outcome["value"] = main(checked(kind, plain(composed, hydra)))
                    return outcome["value"]
                except signals.Interrupted as signal:
                    if signal.__cause__:  # what went wrong besides
                        messages.say(str(signal.__cause__))
                    raise
                except Exception as error:
                    signals.check()
                    outcome["error"] = messages.explain(error, known_keys(kind))
            failures.append(composed)
            return math.inf  # a sweep goes on

        @launch.leaving()
        def program() -> None:
            os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises its errors, and we say them
            if outlives_readers:
                terminal.outlive_readers()
            launch.quiet()
            sys.argv[1:] = [quoted(argument) for argument in options_first(sys.argv[1:])]
            try:
                with signals.ending():
                    job()
            except BrokenPipeError:
                messages.leave_quietly()
            except Exception as error:  # all that is raised outside of a job is about the command line
                messages.say(messages.in_one_line(error, known_keys(kind)))
                sys.exit(1)
            finally:
                gc.freeze()  # Python would else look through all of torch at its end, for half a second
            sys.exit(1 if failures else 0)

        return program

    return decorate


def choices(config_name: str, kind: type[Config], arguments: list[str]) -> dict[str, Config]:
    """A config for each choice that a command line leaves open, by what is chosen: ``norm=none,layernorm``
    makes two; without any choice it is one, by the name "".

    Raises:
        ConfigError: as ``checked``; Hydra's and OmegaConf's errors, which ``errors.explain`` explains.
    """
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--config-dir")
    options, overrides = parser.parse_known_args([argument for argument in arguments if argument != "-m"])
    overrides += searching(options.config_dir)
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        parsed = OverridesParser.create(loader).parse_overrides([quoted(override) for override in overrides])
    values = alternatives(parsed)
    jobs = [list(job) for job in itertools.product(*values.values())]
    names = [" ".join(one for one in job if len(values[key_of(one)]) > 1) for job in jobs]
    return dict(zip(names, composed_all(config_name, kind, jobs), strict=True))


def searching(config_dir: str | None) -> list[str]:
    """What --config-dir is as an override. Raises OSError where there is no such folder."""
    if config_dir is None:
        return []
    os.stat(config_dir)  # raises what Hydra would only warn of
    return [f"hydra.searchpath=[file://{Path(config_dir).resolve()}]"]


def composed_all(config_name: str, kind: type[Config], jobs: list[list[str]]) -> list[Config]:
    """The config that each list of overrides makes, whichever program asks. Raises as ``choices``."""
    within = GlobalHydra.instance().is_initialized()  # a job of one of them
    with nullcontext() if within else hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        return [
            checked(kind, composed_job(hydra.compose(config_name, job, return_hydra_config=True)))
            for job in jobs
        ]


def alternatives(parsed: list[Override]) -> dict[str, list[str]]:
    """Each overridden key with the override, or the several of a sweep, that a job may take; the last of a
    key counts.

    Raises:
        ConfigError: a sweep over an interval, which has no list of values.
    """
    found = {}
    for override in parsed:
        key = override.get_key_element()
        if override.is_sweep_override() and not override.is_discrete_sweep():
            raise ConfigError(
                f"{key}: an interval has no list of values; write {key}=1e-3,1e-2 or range(0,3)"
            )
        found[key] = (
            [f"{key}={value}" for value in override.sweep_string_iterator()]
            if override.is_sweep_override()
            else [override.input_line or ""]
        )
    return found


def key_of(override: str) -> str:
    return override.partition("=")[0]


def known_keys(kind: type[Config]) -> list[str]:
    """Every key that the command line may set, those of the norms and placements in conf/ among them."""
    found = keys(kind)
    for group in ("norm", "placement"):
        for file in (CONF / group).glob("*.yaml"):
            found += [f"{group}.{key}" for key in yaml.safe_load(file.read_text(encoding="utf-8"))]
    return found


def options_first(arguments: list[str]) -> list[str]:
    """Hydra's options before the overrides, wherever they were typed: its parser refuses a mixture."""
    options: list[str] = []
    overrides: list[str] = []
    takes_next = False  # as its value
    for argument in arguments:
        is_option = argument.startswith("-")
        (options if is_option or takes_next else overrides).append(argument)
        takes_next = is_option and argument not in ALONE and "=" not in argument
    return options + overrides


def quoted(argument: str) -> str:
    """``prompt=What's in a name?`` so that Hydra's parser gives back these letters, as text."""
    key, equals, value = argument.partition("=")
    if not equals or key.lstrip("+") not in TEXT_KEYS:
        return argument
    if key == "init_from" and (value == "null" or "," in value):  # nothing; or a run of each
        return argument
    return as_text(key, value)


def as_text(key: str, value: str) -> str:
    """The override that gives ``key`` this very text."""
    # OmegaConf: ${ opens an interpolation, \${ does not, and backslashes before it are doubled
    value = re.sub(r"(\\*)\$\{", lambda found: 2 * found[1] + r"\${", value)
    return f"{key}={QuotedString(text=value, quote=Quote.double).with_quotes()}"


def arguments() -> list[str]:
    """The command line that makes this run alone, also when it is one of a sweep, as it is typed: text
    without the quotes that ``quoted`` put around it. Nothing outside of a program."""
    if not HydraConfig.initialized():
        return []
    hydra = HydraConfig.get()
    elsewhere = [source.path for source in hydra.runtime.config_sources if source.provider == "command-line"]
    overrides = []
    for override in hydra.overrides.task:
        key = key_of(override)
        if key.lstrip("+") in TEXT_KEYS:
            text = str(OverridesParser.create().parse_override(override).value())
            override = f"{key}=" + re.sub(r"(\\*)\\\$\{", lambda found: found[1][::2] + "${", text)
        overrides.append(override)
    return [*(f"--config-dir={path}" for path in elsewhere), *overrides]
