"""The command line of the programs that do not use Hydra: their docstring is their help."""

import argparse
import sys
from pathlib import Path
from typing import Any

import yaml

from cli.errors import Config, checked
from data.errors import ConfigError


def parser(doc: str | None, module: str | None = None) -> argparse.ArgumentParser:
    """Return a parser whose help is ``doc``, for a program that is started as python -m MODULE, or by its
    file if ``module`` is None."""
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


def read_literally(kind: type[Config], defaults: Path, doc: str | None) -> Config:
    """Return the config of a program whose arguments are ``key=value``: everything after the first = is the
    value, taken literally. ``null`` means the default, except that a prompt may be the text null. --help
    prints ``doc`` and the defaults. Raises ConfigError."""
    words = sys.argv[1:]
    if {"--help", "-h"} & {*words}:
        print(f"{doc}\n\n{defaults.read_text(encoding='utf-8')}")
        sys.exit()
    values: dict[str, Any] = yaml.safe_load(defaults.read_text(encoding="utf-8"))
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or key.startswith("-"):
            name = key.lstrip("-")
            advice = f"{name}={value or '…'}" if name in values else f'key=value, such as prompt="{word}"'
            raise ConfigError(f"{word}: write {advice}; --help lists every key")
        if value != "null" or key == "prompt":
            values[key] = value
    return checked(kind, values)
