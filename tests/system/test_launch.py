"""Processes know their number among those that were started with them."""

import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from joblib import Parallel, delayed
from joblib.externals.loky import get_reusable_executor

from system.errors import ConfigError
from system.launch import VARIABLES, gpus_for, rank, worker


def number_once_there_are(count: int, folder: Path) -> int:
    """Return this worker's number, when so many workers have called this."""
    (folder / str(worker())).touch()
    deadline = time.monotonic() + 60
    while len([*folder.iterdir()]) < count and time.monotonic() < deadline:
        time.sleep(0.01)
    return worker()


def test_each_worker_of_a_sweep_has_a_number_and_a_process_alone_has_0(tmp_path):
    numbers = Parallel(n_jobs=2)(delayed(number_once_there_are)(2, tmp_path) for _ in range(2))
    assert sorted(numbers) == [0, 1]
    assert worker() == 0


def test_a_worker_that_takes_the_place_of_an_ended_one_has_its_number(tmp_path):
    """So that the workers of a sweep stay on different GPUs."""
    for number in range(3):
        (tmp_path / str(number)).mkdir()
        workers = Parallel(n_jobs=2)
        assert sorted(
            workers(delayed(number_once_there_are)(2, tmp_path / str(number)) for _ in range(2))
        ) == [0, 1]
        get_reusable_executor().shutdown(wait=True, kill_workers=number == 1)


@pytest.mark.parametrize("refused", ["__init__", "bind"])
def test_where_no_address_can_be_taken_a_worker_has_the_number_of_its_start(monkeypatch, refused):
    refusals = iter([PermissionError(1, "Operation not permitted")])

    def refuse(*_):
        raise next(refusals, AssertionError("asked for another address"))

    monkeypatch.setattr("multiprocessing.current_process", lambda: SimpleNamespace(name="LokyProcess-3"))
    monkeypatch.setattr(f"socket.socket.{refused}", refuse)
    assert worker.__wrapped__() == 2


@pytest.mark.parametrize(("device", "expected"), [("auto", 2), ("cuda", 2), ("cuda:1", 1), ("cpu", 0)])
def test_a_sweep_takes_all_gpus_in_turn_unless_it_names_one_or_another_device(monkeypatch, device, expected):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("os.path.exists", lambda path: False)
    assert gpus_for(device) == 0  # there is no driver
    monkeypatch.setattr("os.path.exists", lambda path: path == "/dev/nvidiactl")
    assert gpus_for(device) == expected


@pytest.mark.parametrize("value", ["", "gold", "3"])
def test_a_rank_without_torchrun_is_0_whatever_the_variable_says(monkeypatch, value):
    monkeypatch.setenv("RANK", value)
    assert rank() == 0


@pytest.mark.parametrize(
    ("values", "message"),
    [(("gold", "2"), "RANK: is 'gold'"), (("0", "two"), "WORLD_SIZE: is 'two'"), (("2", "2"), "RANK: is 2,")],
)
def test_variables_of_torchrun_that_are_wrong_are_named(monkeypatch, values, message):
    for name, value in zip(VARIABLES, (*values, "localhost", "1"), strict=True):
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=message):
        rank()
