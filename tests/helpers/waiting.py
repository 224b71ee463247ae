"""Wait for a condition, with a time limit."""

import time
from collections.abc import Callable
from typing import Any

PATIENCE = 900  # seconds; without a fault nothing takes so long, even on a busy machine


def until(condition: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """Return the condition's value as soon as it is true. Raises AssertionError after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not met in {seconds} s"
        time.sleep(0.01)
    return value
