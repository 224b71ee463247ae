"""A sweep says how far it is: at least every two seconds, and at a small price."""

import time
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

from sweep import progress
from sweep.progress import INTERVAL, SHARE, SILENCE, ProgressWatcher


def test_a_sweep_without_a_bar_says_what_is_running_each_two_seconds(capsys, monkeypatch):
    job = SimpleNamespace(name="a", folder=Path("none"), work=1.0, done=False, has_ended=lambda: False)
    job.fraction_trained = job.fraction_done = lambda: 0.5
    watcher = ProgressWatcher([job], [job])
    for seconds in (1, 3, 3600):
        monkeypatch.setattr(watcher, "last_print", time.monotonic() - seconds)
        watcher.update()
        watcher.break_silence()
    assert capsys.readouterr().out.count("none is running") == 2
    assert SILENCE + INTERVAL < 2


def test_hundreds_of_jobs_are_read_rarely_but_are_never_silent(monkeypatch):
    """A reading of so many folders takes long; the pause after it was once a silence, too."""
    clock, readings, lines = [0.0], [], []
    monkeypatch.setattr(
        progress, "time", SimpleNamespace(monotonic=lambda: clock[0], thread_time=lambda: clock[0])
    )
    job = SimpleNamespace(name="a", folder=Path("none"), work=1.0, done=False, has_ended=lambda: False)
    job.fraction_trained = job.fraction_done = lambda: 0.5
    watcher = ProgressWatcher([job], [job])
    update = watcher.update

    def slow_update() -> None:
        readings.append(clock[0])
        clock[0] += 0.1  # the seconds that hundreds of folders take
        update()

    def wait(seconds: float) -> bool:
        clock[0] += seconds
        return clock[0] > 100

    def show(line: str) -> None:
        lines.append(clock[0])
        watcher.last_print = clock[0]

    monkeypatch.setattr(watcher, "update", slow_update)
    monkeypatch.setattr(watcher.stop, "wait", wait)
    monkeypatch.setattr(watcher, "print", show)
    watcher.poll()
    assert len(readings) * 0.1 <= SHARE * 100 + 0.1
    assert max(after - before for before, after in pairwise([0.0, *lines, 100.0])) < 2


def test_the_time_left_goes_by_what_was_trained():
    """Two runs of four failed at once; then one of the others, half done, once had "a few seconds left"."""
    trained, ended = {"a": 0.0, "b": 0.0, "c": 0.0, "d": 0.0}, set()
    jobs = [
        SimpleNamespace(
            name=name,
            work=1.0,
            fraction_trained=lambda name=name: trained[name],
            fraction_done=lambda name=name: 1.0 if name in ended else trained[name],
        )
        for name in trained
    ]
    watcher = ProgressWatcher([], jobs)
    ended |= {"a", "b"}
    trained["c"] = 0.5
    assert watcher.time_left() == ""  # so little says nothing yet
    trained["c"], watcher.start = 1.0, time.monotonic() - 20
    ended.add("c")
    assert watcher.time_left() == "about 20 s left"
