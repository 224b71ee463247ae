"""The command line: compose conf/ with the arguments, validate the result, print errors in one line.

Every program imports this package first. From here until ``signals.ending``, Ctrl-C ends it at once with
status 130: importing the other modules takes half a second, in which Python would print a traceback, and some
modules turn KeyboardInterrupt into an error of their own.
"""

import os
import signal
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # pathlib takes some milliseconds more
PROGRAMS = [ROOT, *(os.path.join(ROOT, folder) for folder in ("scripts", "findings", "bench"))]
main_file = getattr(sys.modules["__main__"], "__file__", None)

if main_file and os.path.dirname(os.path.abspath(main_file)) in PROGRAMS:  # not in another project's program
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(128 + number))
