"""R14: the losses of a run are what they were, version by version: to the bit on the machine and with the
torch that they were written with, to 1e-4 elsewhere.

    python -m tests.faults.test_golden    writes them anew; that commit's message says what changed them
"""

import json
import math
from pathlib import Path

import pytest

from tests.conftest import LETTERS, TINY
from tests.helpers import programs
from tests.helpers.machines import this_machine

FILE = Path(__file__).with_name("golden.json")
RUNS = {
    "layernorm": ("norm=layernorm", "model.dropout=0.1"),
    "batchnorm": ("norm=batchnorm", "placement=post", "train.grad_accum=2"),
    "today's block": ("model=modern",),
}


def losses(folder: Path, *more: str) -> list[float]:
    (folder / "text.txt").write_text(LETTERS, encoding="utf-8")
    common = ("data=text", "data.path=text.txt", "data.cache=cache", *TINY, "train.steps=100")
    given = {one.split("=")[0] for one in more}
    done = programs.run(
        "train.py", *more, *(one for one in common if one.split("=")[0] not in given), cwd=folder
    )
    assert done.returncode == 0, done.stderr
    [metrics] = folder.glob("runs/*/metrics.jsonl")
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [row["train/loss"] for row in rows if "train/loss" in row]


@pytest.mark.parametrize("name", RUNS)
def test_the_losses_of_a_hundred_steps_are_what_they_were(tmp_path, name):
    golden = json.loads(FILE.read_text(encoding="utf-8"))
    found, expected = losses(tmp_path, *RUNS[name]), golden["losses"][name]
    assert len(expected) == 100
    if golden["here"] == this_machine():
        assert found == expected
    assert all(math.isclose(a, b, rel_tol=1e-4) for a, b in zip(found, expected, strict=True))


if __name__ == "__main__":
    import tempfile

    made = {}
    for name, more in RUNS.items():
        with tempfile.TemporaryDirectory() as folder:
            made[name] = losses(Path(folder), *more)
    FILE.write_text(json.dumps({"here": this_machine(), "losses": made}, indent=1) + "\n", encoding="utf-8")
