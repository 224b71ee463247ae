"""The cells of docs/library.md run in a new process, in another folder, with torch and no other requirement
of the project, and print what the page says."""

import json
import os
import re
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.helpers.programs import PATIENCE

PAGE = (ROOT / "docs" / "library.md").read_text(encoding="utf-8")
CELL = re.compile(r"^```python\n(.*?)^```\n(?:\n```\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"(\d+\.\d+)")
ABSENT = ("hydra", "omegaconf", "pydantic", "rich", "safetensors", "scipy", "tiktoken", "wandb", "yaml")
NOTEBOOK = f"""
import contextlib, io, json, sys

sys.modules.update(dict.fromkeys({ABSENT}))  # importing one of them is an ImportError
printed, variables = [], {{}}
for cell in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(cell, variables)
    printed.append(output.getvalue())
json.dump(printed, sys.stdout)
"""


def agrees(printed: str, page: str) -> bool:
    """Return whether the texts are equal, but for 2 in the last digit of numbers with a decimal point, as
    processors round differently."""
    printed_parts, page_parts = NUMBER.split(printed), NUMBER.split(page)
    if printed_parts[::2] != page_parts[::2]:
        return False
    digits = [len(number.partition(".")[2]) for number in page_parts[1::2]]
    pairs = zip(printed_parts[1::2], page_parts[1::2], digits, strict=True)
    return all(abs(float(a) - float(b)) < 2.5 * 10**-places for a, b, places in pairs)


def run(cells: list[str], folder) -> subprocess.CompletedProcess:
    command = [sys.executable, "-W", "error::UserWarning", "-c", NOTEBOOK]
    options = {"cwd": folder, "env": os.environ | {"PYTHONPATH": str(ROOT)}, "timeout": PATIENCE}
    return subprocess.run(command, input=json.dumps(cells), capture_output=True, text=True, **options)


@pytest.mark.slow
def test_the_cells_print_what_the_page_says(tmp_path):
    cells = CELL.findall(PAGE)
    assert len(cells) == PAGE.count("```python") >= 4
    outputs = [output for _, output in cells if output]
    assert PAGE.count("```") == 2 * (len(cells) + len(outputs))  # none is passed over
    done = run([code for code, _ in cells], tmp_path)
    assert done.returncode == 0, done.stderr
    for (code, output), printed in zip(cells, json.loads(done.stdout), strict=True):
        assert agrees(printed, output), f"{code}\nprints\n{printed}\nand the page says\n{output}"
    assert not [*tmp_path.iterdir()]


def test_a_cell_that_needs_more_than_torch_or_prints_something_else_is_noticed(tmp_path):
    assert "ModuleNotFoundError: import of" in run(["import cli.compose"], tmp_path).stderr
    assert agrees("a 1.38 b 9", "a 1.37 b 9")  # rounding
    for other in ("a 1.40 b 9", "a 1.37 b 8", "a 1.37 c 9", "a 1.37 b 9 1.0", "a 1 b 9"):
        assert not agrees(other, "a 1.37 b 9")
