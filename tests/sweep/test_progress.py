"""A sweep says how far it is: at least every two seconds, and at a small price."""

import time
from pathlib import Path
from types import SimpleNamespace

from sweep.progress import INTERVAL, SHARE, SILENCE, ProgressWatcher


def test_a_sweep_without_a_bar_says_what_is_running_each_two_seconds(capsys, monkeypatch):
    job = SimpleNamespace(name="a", folder=Path("none"), work=1.0, done=False, has_ended=lambda: False)
    job.fraction_trained = job.fraction_done = lambda: 0.5
    watcher = ProgressWatcher([job], [job])
    for seconds in (1, 3, 3600):
        monkeypatch.setattr(watcher, "last_print", time.monotonic() - seconds)
        watcher.update()
    assert capsys.readouterr().out.count("none is running") == 2
    assert SILENCE + INTERVAL < 2


def test_reading_many_jobs_takes_at_most_its_share_of_a_core(monkeypatch):
    watcher = ProgressWatcher([], [])
    pauses = []

    def busy() -> None:
        until = time.thread_time() + 0.02  # as if there were hundreds of folders to read
        while time.thread_time() < until:
            pass

    monkeypatch.setattr(watcher, "update", busy)
    monkeypatch.setattr(watcher.stop, "wait", lambda pause: pauses.append(pause) or len(pauses) > 1)
    watcher.poll()
    assert pauses[0] == INTERVAL
    assert pauses[1] >= 0.02 / SHARE


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
