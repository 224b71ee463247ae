"""R14: the losses of a run are those of golden.json: to the bit on the machine and with the torch that it was
written with, to 1e-4 elsewhere.

    python -m tests.faults.test_golden    writes it anew; that commit's message says what changed the losses
"""

import json
import math
from pathlib import Path

import pytest

from tests.conftest import EARLIER_DEFAULTS, LETTERS, TRAIN
from tests.helpers import programs
from tests.helpers.machines import this_machine
from tests.helpers.runs import train_losses

FILE = Path(__file__).with_name("golden.json")
RUNS = {
    "layernorm": ("norm=layernorm", "model.dropout=0.1"),
    "batchnorm": ("norm=batchnorm", "placement=post", "train.grad_accum=2"),
    "today's block": ("model=modern",),
}


def losses(folder: Path, *more: str) -> list[float]:
    (folder / "text.txt").write_text(LETTERS, encoding="utf-8")
    programs.succeed("train.py", *TRAIN, *EARLIER_DEFAULTS, "train.steps=100", *more, cwd=folder)
    [run] = folder.glob("runs/*-s*")
    return train_losses(run)


@pytest.mark.parametrize("name", RUNS)
def test_the_losses_of_a_hundred_steps_are_what_they_were(tmp_path, name):
    golden = json.loads(FILE.read_text(encoding="utf-8"))
    actual, expected = losses(tmp_path, *RUNS[name]), golden["losses"][name]
    assert len(expected) == 100
    if golden["here"] == this_machine():
        assert actual == expected
    assert all(math.isclose(a, b, rel_tol=1e-4) for a, b in zip(actual, expected, strict=True))


if __name__ == "__main__":
    import tempfile

    golden = {}
    for name, more in RUNS.items():
        with tempfile.TemporaryDirectory() as folder:
            golden[name] = losses(Path(folder), *more)
    FILE.write_text(json.dumps({"here": this_machine(), "losses": golden}, indent=1) + "\n", encoding="utf-8")
