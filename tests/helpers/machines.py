"""The kind of machine on which numbers were recorded: other kinds do not give the same bits."""

import importlib.metadata
from typing import Any

from training.environment import cpuinfo, processor


def this_machine() -> dict[str, Any]:
    """Return the facts that decide the last bits of a run: the processor's generation and torch's version."""
    return {
        "processor": processor(),
        "family_model": [cpuinfo("cpu family"), cpuinfo("model")],
        "torch": importlib.metadata.version("torch"),
    }
