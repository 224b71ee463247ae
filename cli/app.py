"""Parse the command line of the programs with Hydra, but pass text on unchanged and print errors as one line.

@app.command("config", RunConfig)
def main(config: RunConfig) -> float | None: ...
"""

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
from cli.compose import check_aliases, composed_job, plain
from cli.flags import split_config_dir, take_debug_flag, without_dry_run
from system import launch, os_compat, signals, terminal
from system.errors import ConfigError
from system.validate import Checked, checked, keys

CONF = Path(__file__).parents[1] / "conf"
TEXT_KEYS = frozenset(  # keys whose values are text and never parsed
    "prompt prompt_file checkpoint run runs_dir init_from out data.path data.cache hydra.sweep.dir "
    "wandb.project wandb.entity wandb.group wandb.dir trust".split()
)
PATH_KEYS = TEXT_KEYS - {"prompt", "wandb.project", "wandb.entity", "wandb.group", "trust"}
FLAGS = ("-m", "--multirun", "--resolve", "--run", "-r", "--help", "-h", "--version")  # take no value
MOST = 100_000  # combinations of values on a command line
Config = TypeVar("Config", bound=Checked)

os_compat.let_waiting_threads_sleep()  # programs import torch after this


def command(
    config_name: str, kind: type[Config], survives_closed_stdout: bool = False
) -> Callable[[Callable[[Config], Any]], Callable[[], None]]:
    """Decorate ``main(config)``: compose conf/<config_name>.yaml with the command line, validate the config.

    The program exits when stdout is closed (`| head`), unless ``survives_closed_stdout`` is true.
    """

    def decorate(main: Callable[[Config], Any]) -> Callable[[], None]:
        failures = []

        @hydra.main(version_base="1.3", config_path=str(CONF), config_name=config_name)
        def job(composed: DictConfig) -> Any:
            settings = HydraConfig.get()
            with job_record.record_job(record_folder(settings)) as outcome:
                try:
                    outcome["value"] = main(checked(kind, plain(composed, settings)))
                    return outcome["value"]
                except signals.Interrupted as signal:
                    outcome["error"] = f"ended by {signal.signal_name}; the same command resumes it"
                    if isinstance(error := signal.__cause__, Exception):  # that came with the signal
                        messages.report(error, known_keys(kind))
                    raise
                except Exception as error:
                    signals.check()  # raises if a signal caused the error
                    outcome["error"] = messages.report(error, known_keys(kind))
            if record_folder(settings) is None:  # a sweep of ours says itself which runs failed
                failures.append(True)
            return math.inf  # the sweep continues

        @launch.exit_together()
        def program() -> None:
            terminal.open_missing_streams()
            os.environ["HYDRA_FULL_ERROR"] = "1"  # makes Hydra raise errors, which are printed below
            if survives_closed_stdout:
                terminal.survive_closed_output()
            take_debug_flag()
            arguments = without_dry_run(sys.argv[1:]) if config_name == "config" else sys.argv[1:]
            sys.argv[1:] = [quote(argument) for argument in options_first(arguments)]
            try:
                launch.silence_other_ranks()
                if config_dir := split_config_dir(sys.argv[1:])[0]:
                    check_aliases(Path(config_dir), CONF)
                with signals.ending():
                    job()
            except Exception as error:
                messages.report(error, known_keys(kind))
                sys.exit(1)
            finally:
                gc.freeze()  # without it, searching torch for garbage at exit takes half a second
            sys.exit(1 if failures else 0)

        return program

    return decorate


def choices(config_name: str, kind: type[Config], arguments: list[str]) -> dict[str, Config]:
    """Return a config for each combination of the values in a command line, keyed by the overrides that
    differ: ``norm=none,layernorm`` gives two configs; without alternatives there is one, keyed by "". Raises
    the errors that ``messages.report`` prints."""
    config_dir, overrides = split_config_dir([word for word in arguments if word not in ("-m", "--multirun")])
    overrides += search_path(config_dir)
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        if config_dir:  # so that glob(*) finds the user's choices, too
            folders = loader.get_search_path()
            folders.append("command-line", f"file://{Path(config_dir).resolve()}")
            loader.repository.initialize_sources(folders)  # type: ignore[attr-defined]
        parsed = OverridesParser.create(loader).parse_overrides([quote(override) for override in overrides])
    values = alternatives(parsed)
    jobs = [list(job) for job in itertools.product(*values.values())]
    names = [" ".join(override for override in job if len(values[key_of(override)]) > 1) for job in jobs]
    return dict(zip(names, composed_all(config_name, kind, jobs), strict=True))


def search_path(config_dir: str | None) -> list[str]:
    """Return --config-dir as an override. Raises OSError if the folder does not exist."""
    if config_dir is None:
        return []
    os.stat(config_dir)  # raises if the folder is missing, of which Hydra would only warn
    check_aliases(Path(config_dir), CONF)
    folder = QuotedString(text=f"file://{Path(config_dir).resolve()}", quote=Quote.double).with_quotes()
    return [f"hydra.searchpath=[{folder}]"]


def composed_all(config_name: str, kind: type[Config], jobs: list[list[str]]) -> list[Config]:
    """Return the config of each list of overrides, inside or outside of a Hydra job. Raises the errors of
    ``choices``."""
    in_job = GlobalHydra.instance().is_initialized()
    with nullcontext() if in_job else hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        composed = [hydra.compose(config_name, job, return_hydra_config=True) for job in jobs]
    return [checked(kind, composed_job(job)) for job in composed]


def alternatives(parsed: list[Override]) -> dict[str, list[str]]:
    """Return, by key, one override per value: ``seed=0,1`` gives two. If a key is given more than once, only
    its last override is used. Raises ConfigError at an interval, or if there are more than MOST
    combinations."""
    values = {}
    for override in parsed:
        typed, key = override.get_key_element(), key_in(override)
        values[key] = [override.input_line or ""]
        if override.is_sweep_override():
            if not override.is_discrete_sweep():
                advice = f"write {key}=1e-3,1e-2 or {key}=range(0,3)"
                raise ConfigError(f"{key}: an interval has no list of values; {advice}")
            texts = itertools.islice(override.sweep_string_iterator(), MOST + 1)
            values[key] = [f"{typed}={value}" for value in texts]
            if not values[key]:
                raise ConfigError(f"{override.input_line}: names no value; give another pattern or range")
    if math.prod(map(len, values.values())) > MOST:
        longest = max(values, key=lambda key: len(values[key]))
        raise ConfigError(f"{longest}: these are more than {MOST:,} combinations; give fewer values")
    return values


def key_of(override: str) -> str:
    """Return the key of an override: ``seed`` of ``++seed=1``. A deletion, ``~seed``, does not replace the
    value that was given before it, so it has a key of its own."""
    return override.partition("=")[0].lstrip("+")


def key_in(override: Override) -> str:
    return key_of(override.get_key_element())


def known_keys(kind: type[Config]) -> list[str]:
    """Return every key that the command line may set, including those of the norms and placements in
    conf/."""
    known = keys(kind)
    for group in ("norm", "placement"):
        for file in (CONF / group).glob("*.yaml"):
            known += [f"{group}.{key}" for key in yaml.safe_load(file.read_text(encoding="utf-8"))]
    return known


def options_first(arguments: list[str]) -> list[str]:
    """Return Hydra's options before the overrides, wherever they were typed: Hydra rejects a mixture."""
    options: list[str] = []
    overrides: list[str] = []
    is_value = False  # the argument is the value of the option before it
    for argument in arguments:
        is_option = argument.startswith("-")
        if argument.startswith("--config-dir=~"):  # which shells leave as it is
            argument = f"--config-dir={os.path.expanduser(argument.partition('=')[2])}"
        (options if is_option or is_value else overrides).append(argument)
        is_value = is_option and argument not in FLAGS and "=" not in argument
    return options + overrides


def quote(argument: str) -> str:
    """Quote the value of a text key, as of ``prompt=What's new?``, so that Hydra's parser leaves it alone. A
    path may begin with ~, which most shells leave as it is after ``data.path=``."""
    key, equals, value = argument.partition("=")
    if not equals or key.lstrip("+") not in TEXT_KEYS:
        return argument
    name = key.lstrip("+")
    if (value == "null" and name != "prompt") or (name == "init_from" and "," in value):  # a comma: a sweep
        return argument
    return text_override(key, os.path.expanduser(value) if name in PATH_KEYS else value)


def text_override(key: str, value: str) -> str:
    """Return the override that sets ``key`` to exactly this text."""
    # OmegaConf: ${ opens an interpolation, \${ does not, and backslashes before it are doubled
    value = re.sub(r"(\\*)\$\{", lambda match: 2 * match[1] + r"\${", value)
    return f"{key}={QuotedString(text=value, quote=Quote.double).with_quotes()}"


def as_typed(argument: str) -> str:
    """Return an argument without the quotes that ``quote`` added."""
    name, equals, _ = argument.partition("=")
    if not equals or name.lstrip("+") not in TEXT_KEYS:
        return argument
    text = OverridesParser.create().parse_override(argument).value()
    return argument if text is None else f"{name}={unescaped(str(text))}"


def unescaped(text: str) -> str:
    """Return text as it was before ``text_override`` escaped ``${``: the inverse of its substitution."""
    return re.sub(r"(\\*)\\\$\{", lambda match: match[1][::2] + "${", text)


def sweep_record() -> dict[str, Any]:
    """Return what the sweep that started this run recorded, such as its plan; empty outside of a sweep."""
    folder = record_folder(HydraConfig.get()) if HydraConfig.initialized() else None
    return job_record.read(folder) if folder else {}


def record_folder(settings: Any) -> Path | None:
    """Return the folder of a job's record in a sweep; None outside, where a user may set the subdir, too."""
    folder = Path(settings.runtime.output_dir)
    return folder if settings.sweep.subdir != "." and "launcher" in job_record.read(folder) else None


def arguments() -> list[str]:
    """Return the arguments that start this run by itself, even if a sweep started it, without the quotes that
    ``quote`` added; [] if Hydra did not start this process."""
    if not HydraConfig.initialized():
        return []
    settings = HydraConfig.get()
    sources = settings.runtime.config_sources
    config_dirs = [source.path for source in sources if source.provider == "command-line"]
    return [*(f"--config-dir={folder}" for folder in config_dirs), *map(as_typed, settings.overrides.task)]
