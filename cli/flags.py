"""Arguments that Hydra does not know: --debug, with which errors are printed with their traceback, and
--dry-run, with which a sweep, or one run, is only planned."""

import os
import sys

from system.errors import ConfigError

DEBUG = "NORMGPT_DEBUG"  # environment variable, which the jobs of a sweep inherit


def take_debug_flag() -> None:
    """Take --debug out of the arguments, and set ``DEBUG`` if it was there."""
    if "--debug" in sys.argv:
        os.environ[DEBUG] = "1"
        sys.argv = [argument for argument in sys.argv if argument != "--debug"]


def without_dry_run(arguments: list[str]) -> list[str]:
    """Return the arguments with --dry-run, if it is there, replaced by those that Hydra knows: one run is
    then planned as a sweep of one."""
    if "--dry-run" not in arguments:
        return arguments
    others = [argument for argument in arguments if argument not in ("--dry-run", "-m", "--multirun")]
    return ["-m", *others, "hydra.sweeper.dry_run=true"]


def split_config_dir(arguments: list[str]) -> tuple[str | None, list[str]]:
    """Return the value of --config-dir, if it was given, and the other arguments. Raises ConfigError."""
    folder, others = None, []
    remaining = iter(arguments)
    for argument in remaining:
        option, _, value = argument.partition("=")
        if option in ("--config-dir", "-cd"):
            folder = os.path.expanduser(value or next(remaining, ""))  # shells leave the ~ of =~/mine
            if not folder:
                raise ConfigError("--config-dir: no folder; give --config-dir FOLDER")
        else:
            others.append(argument)
    return folder, others
