import pickle
import signal

from training.interrupts import Interrupted


def test_an_interruption_passes_from_a_worker_to_the_process_that_launched_it():
    there = pickle.loads(pickle.dumps(Interrupted(signal.SIGTERM)))
    assert (type(there), there.code, there.signal) == (Interrupted, 128 + signal.SIGTERM, "SIGTERM")
