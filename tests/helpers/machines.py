"""The machine that recorded numbers were made on: only there do the same numbers come out to the bit."""

import importlib.metadata
from typing import Any

from rundir.environment import cpuinfo, processor


def this_machine() -> dict[str, Any]:
    """Return what decides the last bits of a run: the generation of the processor, and torch's version."""
    return {
        "processor": processor(),
        "family_model": [cpuinfo("cpu family"), cpuinfo("model")],
        "torch": importlib.metadata.version("torch"),
    }
