"""Signals end a program: at once or after a step of its loop, and even if other code swallows them."""

import os
import pickle
import signal
import time

import pytest

from system import signals
from system.errors import LostRankError
from system.signals import Interrupted, deferred, ending


def signalled():
    os.kill(os.getpid(), signal.SIGTERM)


def another_error_on_its_way():
    try:
        signalled()
    finally:
        raise ValueError  # as OmegaConf does when a signal interrupted the construction of an object


def lost():
    class Last:
        def __del__(self):
            signalled()

    Last()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("how", [another_error_on_its_way, lost])
def test_a_signal_ends_a_program_even_if_other_code_swallows_it(how):
    with pytest.raises(Interrupted) as raised, ending():
        how()
    assert raised.value.number == signal.SIGTERM
    with ending():  # another program
        pass


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_deferred_loop_does_not_begin_after_a_signal_that_was_lost():
    def program():
        lost()
        with deferred():
            pytest.fail("begun")

    with pytest.raises(Interrupted), ending():
        program()


def test_an_interruption_passes_from_a_worker_to_the_process_that_launched_it():
    there = pickle.loads(pickle.dumps(Interrupted(signal.SIGTERM)))
    assert (type(there), there.code, there.signal_name) == (Interrupted, 128 + signal.SIGTERM, "SIGTERM")


def another_rank_ended():
    try:
        raise LostRankError
    finally:
        signalled()  # as torchrun does, while this rank handles LostRankError


def test_a_signal_does_not_hide_that_another_rank_has_ended():
    with pytest.raises(Interrupted) as raised, ending():
        another_rank_ended()
    assert isinstance(raised.value.__cause__, LostRankError)


def reached_by_a_loop(times: int, pause: float) -> list[int]:
    """Return the steps that a loop does if it gets a signal ``times`` times, ``pause`` seconds apart."""
    reached = []

    def loop():
        with ending(), deferred():
            for i in range(times):
                os.kill(os.getpid(), signal.SIGINT)
                reached.append(i)
                time.sleep(pause)

    with pytest.raises(Interrupted):
        loop()
    return reached


def test_a_signal_waits_for_the_loop_and_counts_once_if_it_is_sent_twice():
    assert reached_by_a_loop(times=3, pause=0.01) == [0, 1, 2]


@pytest.mark.parametrize("around", [ending, deferred])
def test_a_signal_that_is_ignored_as_under_nohup_stays_ignored(around):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with around():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_second_signal_after_a_while_acts_at_once(monkeypatch):
    monkeypatch.setattr(signals, "PATIENCE", 0.05)
    assert reached_by_a_loop(times=3, pause=0.1) == [0]


def test_a_loop_knows_that_a_second_signal_ends_it_at_once(monkeypatch):
    monkeypatch.setattr(signals, "PATIENCE", 0.0)
    known = []

    def loop():
        with ending(), deferred() as stop:
            for _ in range(2):
                known.append(stop.forced)
                try:
                    os.kill(os.getpid(), signal.SIGINT)
                    time.sleep(0.01)
                except Interrupted:
                    known.append(stop.forced)
                    raise

    with pytest.raises(Interrupted):
        loop()
    assert known == [False, False, True]


def test_a_signal_is_not_forgotten_if_an_error_follows():
    def failing():
        with ending(), deferred():
            os.kill(os.getpid(), signal.SIGTERM)
            raise OSError("disk full")

    with pytest.raises(Interrupted) as raised:
        failing()
    assert raised.value.code == 128 + signal.SIGTERM
    assert str(raised.value.__cause__) == "disk full"


def test_a_signal_that_comes_too_late_for_the_loop_still_ends_the_program():
    done = []

    def stopped_at_the_end():
        with ending(), deferred():
            os.kill(os.getpid(), signal.SIGUSR1)
            done.append(True)

    with pytest.raises(Interrupted) as raised:
        stopped_at_the_end()
    assert done == [True]
    assert raised.value.code == 128 + signal.SIGUSR1
