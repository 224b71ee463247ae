"""Run programs that do not use Hydra: each prints its docstring as help, and an error as one line."""

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from cli import end_of_imports
from cli.flags import take_debug_flag
from system import signals, terminal


def parser(doc: str | None, module: str | None = None) -> argparse.ArgumentParser:
    """Return a parser whose help is ``doc``, for a program that is started as python -m MODULE, or by its
    file if ``module`` is None. A program calls this first, so it also opens missing streams and takes
    --debug."""
    terminal.open_missing_streams()
    end_of_imports()
    take_debug_flag()
    description, _, epilog = (doc or "").partition("\n\n")
    return argparse.ArgumentParser(
        prog=module and f"python -m {module}",
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def positive(text: str) -> int:
    """Return an argument as a number ≥ 1. Raises argparse's error, which ends the program with status 2."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"invalid value {text!r}; expected an integer of at least 1")
    return int(text)


@contextmanager
def running() -> Iterator[None]:
    """Context manager around a program: an error is printed as one line and ends the program with status 1; a
    signal ends it with status 128 + the signal's number."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # makes Hydra raise errors, which are printed below
    try:
        with signals.ending():
            yield
    except Exception as error:
        from cli import app, messages  # Hydra is slow to import
        from cli.schema import RunConfig

        messages.report(error, app.known_keys(RunConfig))
        sys.exit(1)
