"""Checks of refusals: one line that says where, what is wrong and what to do."""

import re
import subprocess

LINE = re.compile(r"error: (?P<where>.+?): (?P<what>.+); (?P<todo>.+)")


def check_refused(done: "subprocess.CompletedProcess[str]", *words: str) -> None:
    """Check that a program refused in one line of the form ``LINE`` that contains all ``words``."""
    error = check_one_line(done, *words)
    assert LINE.fullmatch(error), error


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
