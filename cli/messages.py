"""Print errors as one line for the user: ``error: <key or file>: <what is wrong>; <what to do>``."""

import difflib
import errno
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import yaml
from hydra.errors import (
    ConfigCompositionException,
    HydraException,
    MissingConfigException,
    OverrideParseException,
)
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from cli.flags import DEBUG
from system import terminal
from system.errors import UserError, described
from system.validate import unknown_key

ROOT = Path(__file__).parents[1]
OURS = (  # packages of this project; a folder of the user's may lie beside them
    "bench", "cli", "comparison", "data", "diagnostics", "findings", "hydra_plugins", "interop", "model",
    "rundir", "scripts", "sweep", "system", "training",
)  # fmt: skip
READERS = ("hydra", "omegaconf", "antlr4", "yaml")  # packages that read what the user gave
# errors that are about what the user gave
USERS = (UserError, OmegaConfBaseException, HydraException, OSError, yaml.YAMLError)
SUBMITIT = "hydra/launcher/submitit_slurm"  # a package's config, which hydra/launcher/slurm.yaml extends


def report(error: Exception, known: list[str], prefix: str | None = None) -> str:
    """Print an error as one line after ``prefix``, and return the line. A bug of this project is printed
    with its traceback; with --debug, so is every error."""
    if isinstance(error, BrokenPipeError):
        exit_quietly()
    is_unreadable = isinstance(error, RecursionError | ValueError) and raised_by(error, READERS)
    if isinstance(error, USERS) or is_unreadable:
        line = error_line(error, known)
    elif isinstance(error, MemoryError):
        line = f"memory: none is left ({described(error)}); free some, or raise the limit of this process"
    elif where := foreign_code(error):
        line = f"{where}: {described(error)}; correct this code, or add --debug for the traceback"
    else:
        traceback.print_exception(error)
        return described(error)
    if os.environ.get(DEBUG):
        traceback.print_exception(error)
    print_error(f"{prefix}: {line}" if prefix else line)
    return line


def raised_by(error: Exception, packages: Sequence[str]) -> bool:
    """Return whether the innermost code of a package that raised an error is of one of these packages."""
    modules = (frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__))
    tops = [name.partition(".")[0] for name in modules]
    return next((top in packages for top in reversed(tops) if top not in sys.stdlib_module_names), False)


def foreign_code(error: Exception) -> str | None:
    """Return the line that raised an error, such as ``mynorms.py:12, in L1Norm.forward``, if it is neither
    of this project nor of a library that it called."""
    libraries = {
        Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")
    }
    for frame, line in reversed([*traceback.walk_tb(error.__traceback__)]):
        file = Path(frame.f_code.co_filename).resolve()
        if not file.is_file() or any(file.is_relative_to(folder) for folder in libraries):
            continue
        if file.parent == ROOT or any(file.is_relative_to(ROOT / package) for package in OURS):
            return None
        return f"{file}:{line}, in {frame.f_code.co_qualname}"
    return None


def exit_quietly() -> NoReturn:
    """Exit without a message, as stdout is closed, for example by ``| head``."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(141)


def error_line(error: Exception, known: list[str]) -> str:
    """Return a UserError, or an error of Hydra, OmegaConf or YAML, as ``<key>: <what is wrong>; <what to
    do>``."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, OSError) and not isinstance(error, HydraException):
        where = f"{error.filename}: " if error.filename is not None else ""
        if error.errno == errno.ENOENT and error.filename is None:  # of os.getcwd
            return "the current folder: it was removed; change to another one"
        return f"{where}{error.strerror or error}; check the path, its permissions and free space"
    text = " ".join(str(error).split())
    if "maximum recursion depth" in text:
        return "command line: a value or a config contains itself or is nested too deeply; correct it"
    if isinstance(error, MissingConfigException) and error.missing_cfg_file == SUBMITIT:
        return "hydra/launcher: slurm needs extra packages; run pip install -r requirements-slurm.txt"
    if isinstance(error, MissingConfigException) and error.options:
        group, _, choice = (error.missing_cfg_file or "").rpartition("/")
        choices = ", ".join(error.options)
        similar = difflib.get_close_matches(choice, error.options, n=1)
        meant = f"did you mean {similar[0]}? All: {choices}" if similar else f"choose one of {choices}"
        return f"{group}: there is no {choice!r}; {meant}; one of your own needs --config-dir"
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
        mark = error.problem_mark
        return f"{mark.name}: line {mark.line + 1}: {' '.join(str(error.problem).split())}; correct the file"
    if isinstance(error, OverrideParseException):
        if str(error.override).endswith(","):
            return f"{error.override!r}: ends with a comma; remove it, or add another value"
        why = " ".join(str(error.message).split()).split(" See https")[0].split(" expecting ")[0]
        return f"{error.override!r}: cannot be read ({why}); write key=value"
    if isinstance(error, MissingMandatoryValue):
        return f"{error.full_key}: a value is needed; give {error.full_key}=…"
    if isinstance(error, ConfigCompositionException):
        if match := re.search(r"Could not override '([^']+)'", text):
            return unknown_key(match[1], known)
        cause = str(error.__cause__ or "").partition("\n")[0]
        text = text.removeprefix("Error merging override ").split(" full_key:")[0]
        text += f" ({cause})" if cause and cause not in text else ""
    if "Ambiguous value" in text and (match := re.search(r"for argument '([^']+)'", text)):
        return f"{match[1]}: several values; add -m to run each value, or quote them to make them one"
    if match := re.search(r"(.*?) full_key: (\S+)", text):
        return f"{match[2]}: {match[1]}; give another value"
    if match := re.match(r"Additional config directory '(.*?)' not found", text):
        return f"--config-dir: {match[1]}: no such folder; check the path"
    return f"command line: {text}; --help lists every choice"


def print_error(message: str) -> None:
    """Print one line on stderr, its control characters escaped."""
    print(f"error: {terminal.escaped(message)}", file=sys.stderr, flush=True)
