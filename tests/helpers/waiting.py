"""Wait for a condition, with a time limit."""

import time
from collections.abc import Callable
from typing import Any

from tests.helpers.programs import PATIENCE


def until(condition: Callable[[], Any], seconds: float = PATIENCE, pause: float = 0.02) -> Any:
    """Return the condition's value as soon as it is true. Raises AssertionError after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not met in {seconds} s"
        time.sleep(pause)
    return value
