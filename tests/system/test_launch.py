"""Processes know their number among those that were started with them."""

import time
from pathlib import Path

from joblib import Parallel, delayed

from system.launch import worker


def number_once_there_are(count: int, folder: Path) -> int:
    """Return this worker's number, when so many workers have called this."""
    (folder / str(worker())).touch()
    deadline = time.monotonic() + 60
    while len([*folder.iterdir()]) < count and time.monotonic() < deadline:
        time.sleep(0.01)
    return worker()


def test_each_worker_of_a_sweep_has_a_number_and_a_process_alone_has_0(tmp_path):
    numbers = Parallel(n_jobs=2)(delayed(number_once_there_are)(2, tmp_path) for _ in range(2))
    assert len(set(numbers)) == 2  # 0 and 1, unless this process has had workers before
    assert worker() == 0
