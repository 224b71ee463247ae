"""Errors in one line: ``error: <key or file>: <what is wrong>; <what to do>``, with exit status 1.

Every error that the user can correct has this form. A bug keeps its traceback; --debug prints the traceback
of any error.
"""

import difflib
import os
import re
import reprlib
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from cli.schema import Checked, RunConfig
from data.errors import ConfigError, UserError

CONF = Path(__file__).parents[1] / "conf"
Config = TypeVar("Config", bound=Checked)
SHORT = {"lr": "optim.learning_rate", "optim.lr": "optim.learning_rate"}  # other programs' names of a key


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Context manager around a program: print an error as one line, and exit with status 1."""
    if "--debug" in sys.argv:
        os.environ["NORMGPT_DEBUG"] = "1"
        sys.argv = [word for word in sys.argv if word != "--debug"]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # makes Hydra raise its errors; else it prints six lines
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the reader of stdout has gone, as in | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except Exception as error:
        line = error_line(error)
        if line is None or os.environ.get("NORMGPT_DEBUG"):
            traceback.print_exception(error)
        if line is not None:
            print(f"error: {line}", file=sys.stderr, flush=True)
        sys.exit(1)


def error_line(error: Exception) -> str | None:
    """Return what the user is told about an error; None if it is a bug."""
    if isinstance(error, UserError):
        return str(error)
    package = isinstance(error, ImportError) and error.name and error.name.split(".")[0]
    if package and not (CONF.parent / package).is_dir():  # not one of our own
        file = "requirements-slurm.txt" if package == "submitit" else "requirements.txt"
        return f"{package}: cannot be imported ({error}); run pip install -r {file}"
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
        mark = error.problem_mark
        return f"{mark.name}: line {mark.line + 1}: {' '.join(str(error.problem).split())}; correct the file"
    if type(error).__module__.startswith(("hydra.", "omegaconf.")):
        return hydras_line(error)
    if isinstance(error, ValueError) and str(error).startswith("Config group override must be"):
        return f"a group such as norm or model: the choice must be a name ({error}); write norm=NAME"
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename is not None else ""
        return f"{where}{error.strerror or error}; check the path, its permissions and free space"
    return None


def hydras_line(error: Exception) -> str:
    """Return the line for an error that Hydra or OmegaConf raised."""
    text, kind = " ".join(str(error).split()), type(error).__name__
    details: Any = error  # its attributes depend on its kind
    if kind == "MissingConfigException" and details.options:
        group, _, choice = (details.missing_cfg_file or "").rpartition("/")
        return no_such_choice(group, choice, details.options)
    if kind == "OverrideParseException":
        why = " ".join(str(details.message).split()).split(" See https")[0].split(" expecting ")[0]
        return f"{details.override!r}: cannot be read ({why}); write key=value, with quotes around spaces"
    if kind == "MissingMandatoryValue":
        files = ", a text file, or for data=prepared a folder with train.bin and val.bin"
        hint = files if details.full_key == "data.path" else ""
        return f"{details.full_key}: a value is needed; give {details.full_key}=…{hint}"
    if match := re.search(r"Could not override '([^']+)'", text):
        return unknown_key(match[1], known_keys())
    if "Ambiguous value" in text and (match := re.search(r"for argument '([^'=]+)", text)):
        return f"{match[1]}: several values; add -m to run each value, or quote them to make them one"
    if (match := re.search(r"(.*?) full_key: (\S+)", text)) and kind != "ConfigCompositionException":
        return f"{match[2]}: {match[1]}; give another value"
    if match := re.match(r"Additional config directory '(.*?)' not found", text):
        return f"--config-dir: {match[1]}: no such folder; check the path"
    cause = str(error.__cause__ or "").partition("\n")[0]
    text = text.removeprefix("Error merging override ").split(" full_key:")[0]
    why = f" ({cause})" if cause and cause not in text else ""
    return f"command line: {text}{why}; --help lists every choice"


def no_such_choice(group: str, choice: str, choices: list[str]) -> str:
    """Return the line for an unknown choice of a group, with the most similar one."""
    similar = difflib.get_close_matches(choice, choices, n=1)
    meant = f"did you mean {similar[0]}? All: " if similar else "choose one of "
    return f"{group}: there is no {choice!r}; {meant}{', '.join(choices)}; --config-dir adds your own"


def checked(kind: type[Config], plain: dict[str, Any]) -> Config:
    """Return ``plain`` as a frozen config. Raises ConfigError, whose message names the first invalid key."""
    try:
        return kind.model_validate(plain)
    except ValidationError as error:
        raise ConfigError(validation_line(kind, error)) from None


def validation_line(kind: type[BaseModel], error: ValidationError) -> str:
    """Return pydantic's first error as one line."""
    first = error.errors()[0]
    location = list(first["loc"])
    if location and location[0] in kind.model_fields and kind.model_fields[str(location[0])].discriminator:
        del location[1:2]  # pydantic names the chosen model, such as "adamw", which is not a key
    key = ".".join(map(str, location))
    if first["type"] == "extra_forbidden":
        return unknown_key(key, keys(kind))
    if first["type"] == "missing":
        annotation = kind.model_fields[key].annotation if key in kind.model_fields else None
        return f"{key}: the key is missing; give {key}={'|'.join(map(str, get_args(annotation))) or '…'}"
    if first["type"] == "value_error" and isinstance(first["input"], dict):  # a check of several keys
        message = first["msg"].removeprefix("Value error, ")
        return f"{key}.{message}" if key else message
    return invalid_value(key or "config", first["input"], expectation(error))


def invalid_value(key: str, value: Any, expected: str) -> str:
    return f"{key}: invalid value {reprlib.repr(value)}; {expected}"


def expectation(error: ValidationError) -> str:
    """Return what pydantic's first error expects, such as ``it should be a valid integer``."""
    message = error.errors()[0]["msg"].removeprefix("Value error, ").split(", unable")[0]
    return re.sub(r"^\w+(?= should)", "it", message)


def keys(kind: type[BaseModel], prefix: str = "") -> list[str]:
    """Return every key of a config, dotted; a part that allows any key, such as a norm, counts as one."""
    dotted = []
    for name, field in kind.model_fields.items():
        types = (field.annotation, *get_args(field.annotation))
        models = [t for t in types if isinstance(t, type) and issubclass(t, BaseModel)]
        models = [model for model in models if model.model_config.get("extra") == "forbid"]
        dotted += [key for model in models for key in keys(model, f"{prefix}{name}.")] or [prefix + name]
    return list(dict.fromkeys(dotted))


def known_keys() -> list[str]:
    """Return every key of train.py, including the options of the norms and placements in conf/."""
    files = [*CONF.glob("norm/*.yaml"), *CONF.glob("placement/*.yaml")]
    contents = {file: yaml.safe_load(file.read_text("utf-8")) for file in files}
    return keys(RunConfig) + [f"{file.parent.name}.{key}" for file in files for key in contents[file]]


def unknown_key(key: str, known: list[str]) -> str:
    """Return the line for an unknown key, which names the most similar key; or for a key that the chosen
    norm, placement or optimizer lacks."""
    if key in known:
        return f"{key}: the chosen {key.split('.')[0]} has no such key; leave it out"
    similar = [SHORT[key]] if SHORT.get(key) in known else difflib.get_close_matches(key, known, n=1)
    similar = similar or [each for each in known if each.split(".")[-1] == key.split(".")[-1]]
    return f"{key}: unknown key; {f'did you mean {similar[0]}?' if similar else '--cfg job prints all keys'}"
