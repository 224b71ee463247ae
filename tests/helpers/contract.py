"""Checks of refusals: one line that says where, what is wrong and what to do; and every file is kept."""

import re
import subprocess
from pathlib import Path

LINE = re.compile(r"error: (?P<where>.+?): (?P<what>.+); (?P<todo>.+)")


def contents(folder: Path) -> dict[Path, bytes]:
    """Return the content of each file, except locks, which name their last holder, and huge sparse files."""
    files = [f for f in sorted(folder.rglob("*")) if f.is_file() and f.name != ".lock"]
    return {f: f.read_bytes() for f in files if f.stat().st_size < 2**28}


def check_refused(
    done: "subprocess.CompletedProcess[str]", *words: str, before: dict[Path, bytes] | None = None
) -> None:
    """Check that a program refused in one line of the form ``LINE``, and kept each file of ``before``."""
    error = check_one_line(done, *words)
    assert LINE.fullmatch(error), error
    check_kept(before or {})


def check_one_line(done: "subprocess.CompletedProcess[str]", *words: str) -> str:
    """Check that a program ended with one error line that contains all ``words``, and return the line."""
    output = done.stdout + done.stderr
    assert done.returncode in (1, 2), output
    assert "Traceback" not in output
    errors = error_lines(done.stderr)
    assert len(errors) == 1, done.stderr
    for word in words:
        assert word in errors[0]
    return errors[0]


def error_lines(text: str) -> list[str]:
    """Return the errors in what a program printed; a busy machine also says what takes long."""
    return [line for line in text.splitlines() if line.startswith("error: ")]


def check_kept(before: dict[Path, bytes]) -> None:
    for file, content in before.items():
        assert file.read_bytes() == content, file
