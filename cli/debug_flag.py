"""The argument --debug, with which errors are printed with their traceback."""

import os
import sys

DEBUG = "NORMGPT_DEBUG"  # environment variable, which the jobs of a sweep inherit


def take_debug_flag() -> None:
    """Take --debug out of the arguments, and set ``DEBUG`` if it was there."""
    if "--debug" in sys.argv:
        os.environ[DEBUG] = "1"
        sys.argv = [argument for argument in sys.argv if argument != "--debug"]
