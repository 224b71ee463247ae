"""One run: what train.py's loop uses.

Import this package before torch: it sets three environment variables, which torch reads only when it is
imported.
"""

import os

# At every operation, GNU's OpenMP waits in a busy loop for several ms, which takes cores from other
# processes. Beside two other processes on two cores, a run of 40 steps took 135 s; with this setting, 21 s.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "5000")
# On a CPU, large tensors get pages of 2 MiB, where Linux lets programs choose. Linux zeroes each page at its
# first write; with pages of 4 KiB this takes longer than most operations.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
# Without this, torch refuses CUDA's matrix products when they have to be deterministic.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
