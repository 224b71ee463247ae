"""What went wrong, in one line for its user: ``error: <where>: <what is wrong>; <what to do>``."""

import os
import re
import sys
import traceback
from typing import NoReturn

import yaml
from hydra.errors import (
    ConfigCompositionException,
    HydraException,
    MissingConfigException,
    OverrideParseException,
)
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from system import terminal
from system.errors import UserError
from system.validate import unknown_key

SUBMITIT = "hydra/launcher/submitit_slurm"  # which conf/hydra/launcher/slurm.yaml takes from its package


def explain(error: Exception, known: list[str], of: str | None = None) -> str:
    """Say in one line what a user can do about an error, and before it of what it is; return it. One of ours
    shows its place, too."""
    if isinstance(error, BrokenPipeError):
        leave_quietly()
    if isinstance(error, UserError | OmegaConfBaseException | HydraException):
        line = in_one_line(error, known)
    elif isinstance(error, OSError):
        where = f"{error.filename}: " * (error.filename is not None)
        line = f"{where}{error.strerror or error}; check the path, its permissions and free space"
    else:
        traceback.print_exception(error)
        return f"{type(error).__name__}: {error}"
    say(f"{of}: {line}" if of else line)
    return line


def leave_quietly() -> NoReturn:
    """Whoever read our output has gone: | head."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(141)


def in_one_line(error: Exception, known: list[str]) -> str:
    """An error of ours, or what Hydra, OmegaConf or YAML complain of, as ``<key>: <what is wrong>; <what to
    do>``."""
    if isinstance(error, UserError):
        return str(error)
    text = " ".join(str(error).split())
    if isinstance(error, MissingConfigException) and error.missing_cfg_file == SUBMITIT:
        return "hydra/launcher: slurm needs a package more; pip install -r requirements-slurm.txt"
    if isinstance(error, MissingConfigException) and error.options:
        group, _, choice = (error.missing_cfg_file or "").rpartition("/")
        return f"{group}: there is no {choice!r}; choose one of {', '.join(error.options)}"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}; check the path and its permissions"
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
        mark = error.problem_mark
        return f"{mark.name}: line {mark.line + 1}: {' '.join(str(error.problem).split())}; mend the file"
    if isinstance(error, OverrideParseException):
        why = " ".join(str(error.message).split()).split(" See https")[0]
        return f"{error.override!r}: cannot be read ({why}); write key=value"
    if isinstance(error, MissingMandatoryValue):
        return f"{error.full_key}: a value is needed; give {error.full_key}=…"
    if isinstance(error, ConfigCompositionException):
        found = re.search(r"Could not override '([^']+)'", text)
        if found:
            return unknown_key(found[1], known)
        text = text.removeprefix("Error merging override ").split(" full_key:")[0]
    if "Ambiguous value" in text and (found := re.search(r"for argument '([^']+)'", text)):
        return f"{found[1]}: several values; add -m for a run of each, or quote the value"
    if found := re.search(r"(.*?) full_key: (\S+)", text):
        return f"{found[2]}: {found[1]}; give another value"
    if found := re.match(r"Cannot find primary config '(.*?)'", text):
        return f"--config-name: there is no {found[1]!r}; leave it out"
    if found := re.match(r"Additional config directory '(.*?)' not found", text):
        return f"--config-dir: {found[1]}: no such folder; check the path"
    return f"command line: {text}; --help says what there is"


def say(message: str) -> None:
    """One line on stderr, its control characters escaped."""
    print(f"error: {terminal.escaped(message)}", file=sys.stderr, flush=True)
