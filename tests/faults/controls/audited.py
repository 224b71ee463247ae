"""A program that is told on: ``audited.py PROGRAM ARGUMENTS`` writes to the file AUDIT what Python's audit
hooks report of it that could run a stranger's code, reach a network or write elsewhere, from the moment on
that it has read the command line.

What the program itself needs is imported before, as importing executes code.
"""

import os
import platform
import sys

import torch._dynamo  # noqa: F401
import vl_convert  # noqa: F401

import compare
import comparison.drawing.page  # noqa: F401
import sample
import train
from cli import app
from diagnostics import activations, causality, non_finite, weights  # noqa: F401
from model import generate, placements  # noqa: F401
from training import device, rehearsal, setup, state  # noqa: F401

SUSPECT = ("pickle.find_class", "os.system", "os.exec", "os.spawn", "os.posix_spawn", "subprocess.Popen")
SUSPECT += ("socket.connect", "socket.bind", "urllib.Request", "os.fork")
FILE = os.environ["AUDIT"]


def told(event: str, arguments: tuple) -> None:
    code = arguments[0] if event == "exec" else None
    from_text = code is not None and not os.path.exists(code.co_filename)  # not a module that is imported
    if event.startswith(SUSPECT) or from_text or writes_elsewhere(event, arguments):
        with open(FILE, "a", encoding="utf-8") as file:
            print(event, *map(repr, arguments), file=file)


def writes_elsewhere(event: str, arguments: tuple) -> bool:
    if event != "open" or not isinstance(arguments[0], str | bytes):
        return False
    path, writes = os.path.realpath(os.fsdecode(arguments[0])), arguments[2] & (os.O_WRONLY | os.O_RDWR)
    return bool(writes) and not path.startswith((os.getcwd(), "/dev/", "/proc/"))


if __name__ == "__main__":
    sys.argv[:] = sys.argv[1:]
    program = {"train.py": train, "sample.py": sample, "compare.py": compare}[sys.argv[0]]
    real = app.checked
    platform.platform()  # asks uname once
    if program is compare:  # which has no command line of Hydra's
        sys.addaudithook(told)

    def checked(*arguments):
        sys.addaudithook(told)
        return real(*arguments)

    app.checked = checked
    program.main()
