"""One run: what train.py's loop uses.

Importing this package sets three variables that torch reads once, when it is imported, and so must come
first.
"""

import os

# GNU's OpenMP waits in a busy loop for several ms at every operation, which takes cores from other processes:
# beside two processes on two cores, a run of 40 steps took 135 s, and with this 21 s.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "5000")
# Pages of 2 MiB for large tensors on a CPU, where Linux leaves this choice to programs: zeroing pages of
# 4 KiB at their first write takes longer than most operations.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
# Without it CUDA's matrix products are refused where they have to be deterministic.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
