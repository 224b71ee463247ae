"""Checks of refusals: one line that says where, what is wrong and what to do."""

import re
import subprocess

LINE = re.compile(r"error: .+?: .+; .+")


def check_refused(done: "subprocess.CompletedProcess[str]", *words: str) -> None:
    """Check that a program refused in one line of the form ``LINE`` that contains all ``words``."""
    assert LINE.fullmatch(error := check_one_line(done, *words)), error


def check_one_line(done: "subprocess.CompletedProcess[str]", *words: str) -> str:
    """Check that a program ended with one error line that contains all ``words``, and return the line."""
    assert done.returncode in (1, 2), done
    assert "Traceback" not in done.stdout + done.stderr
    [error] = error_lines(done.stderr)
    for word in words:
        assert word in error
    return error


def error_lines(text: str) -> list[str]:
    """Return the errors in what a program printed; a busy machine also says what takes long."""
    return [line for line in text.splitlines() if line.startswith("error: ")]
