"""R3: every change of a checkpoint is noticed. (Each byte and each length of a small one:
tests/rundir/test_checkpoint_file.py.)"""

import random

import pytest

from rundir import checkpoint_file
from system import errors
from tests.helpers.runs import train_anew


def mutated(content: bytes, draw: random.Random) -> bytes:
    """Return the content, damaged in one of the ways in which files are."""
    at, length = draw.randrange(len(content)), draw.randrange(1, 600)
    return draw.choice(
        [
            content[:at],
            content[:at] + bytes([content[at] ^ (1 << draw.randrange(8))]) + content[at + 1 :],
            content[:at] + bytes(length) + content[at + length :],
            content[:at] + draw.randbytes(length) + content[at + length :],
            content[:at] + content[at + length :],
            content[:at] + content[:length] + content[at:],
            content + draw.randbytes(length),
        ]
    )


@pytest.mark.faults
def test_a_thousand_random_damages_of_a_real_checkpoint_are_noticed(tiny, tmp_path, record_property):
    path = sorted((train_anew(tiny("norm=batchnorm")) / "checkpoints").iterdir())[-1]
    intact, draw = path.read_bytes(), random.Random(0)
    noticed = tried = 0
    for _ in range(1000):
        damaged = mutated(intact, draw)
        tried += damaged != intact
        path.write_bytes(damaged)
        try:
            checkpoint_file.load(path)
        except errors.CheckpointError:
            noticed += damaged != intact
    record_property("R3 random damages of a checkpoint", tried)
    record_property("R3 of these, noticed", noticed)
    assert noticed == tried > 950
