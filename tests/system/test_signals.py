import os
import pickle
import signal

import pytest

from system.errors import LostRankError
from system.signals import Interrupted, deferred, ending


def signalled():
    os.kill(os.getpid(), signal.SIGTERM)


def another_error_on_its_way():
    try:
        signalled()
    finally:
        raise ValueError  # as OmegaConf does, which finds its objects half made


def lost():
    class Last:
        def __del__(self):
            signalled()

    Last()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("how", [another_error_on_its_way, lost])
def test_a_signal_ends_a_program_whatever_other_code_makes_of_it(how):
    with pytest.raises(Interrupted) as raised, ending():
        how()
    assert raised.value.number == signal.SIGTERM
    with ending():  # another program
        pass


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_loop_that_must_not_be_torn_does_not_begin_when_a_signal_was_lost():
    def program():
        lost()
        with deferred():
            pytest.fail("begun")

    with pytest.raises(Interrupted), ending():
        program()


def test_an_interruption_passes_from_a_worker_to_the_process_that_launched_it():
    there = pickle.loads(pickle.dumps(Interrupted(signal.SIGTERM)))
    assert (type(there), there.code, there.signal) == (Interrupted, 128 + signal.SIGTERM, "SIGTERM")


def another_rank_ended():
    try:
        raise LostRankError
    finally:
        signalled()  # as torchrun does, while this rank ends for the same reason


def test_a_signal_does_not_hide_that_another_rank_has_ended():
    with pytest.raises(Interrupted) as raised, ending():
        another_rank_ended()
    assert isinstance(raised.value.__cause__, LostRankError)
