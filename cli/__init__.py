"""The command line: compose conf/ with the arguments, validate the result, print errors in one line.

Importing what a program needs takes half a second, in which Ctrl-C would print a traceback or become another
error inside of a library. So a program of this project that imports this package ends at Ctrl-C at once, with
status 130, until ``programs.parser`` or ``signals.ending``. Most of the half second is imported after this.
"""

import os
import signal
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # pathlib takes some milliseconds more
PROGRAMS = [ROOT, *(os.path.join(ROOT, folder) for folder in ("scripts", "findings", "bench"))]


def is_program() -> bool:
    """Return whether Python runs a program of this project, and not another's that imports it."""
    main_file = getattr(sys.modules["__main__"], "__file__", None)
    return main_file is not None and os.path.dirname(os.path.abspath(main_file)) in PROGRAMS


def exit_at_once(number: int, frame: object) -> None:
    os._exit(128 + number)


def end_of_imports() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is exit_at_once:
        signal.signal(signal.SIGINT, signal.default_int_handler)


# A signal that is ignored, as in the background of a shell, stays ignored.
if is_program() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, exit_at_once)
