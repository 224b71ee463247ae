"""docs/library.md, to the letter: its cells run in a fresh process, in another folder, with torch and nothing
else of what the project requires, and print what the page says."""

import json
import os
import re
import subprocess
import sys

import pytest

from tests.conftest import ROOT

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
    """Whether they are the same, but that a number with a decimal point may be off by 2 in its last digit, as
    other processors round otherwise."""
    found, said = NUMBER.split(printed), NUMBER.split(page)
    if found[::2] != said[::2]:
        return False
    digits = [len(number.partition(".")[2]) for number in said[1::2]]
    pairs = zip(found[1::2], said[1::2], digits, strict=True)
    return all(abs(float(a) - float(b)) < 2.5 * 10**-places for a, b, places in pairs)


def run(cells: list[str], folder) -> subprocess.CompletedProcess:
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "error::UserWarning", "-c", NOTEBOOK]
    return subprocess.run(
        command, input=json.dumps(cells), cwd=folder, env=environ, capture_output=True, text=True, timeout=120
    )


@pytest.mark.slow
def test_the_cells_print_what_the_page_says(tmp_path):
    cells = CELL.findall(PAGE)
    assert len(cells) == PAGE.count("```python") >= 9
    assert PAGE.count("```") == 2 * (
        len(cells) + sum(bool(output) for _, output in cells)
    )  # none is passed over
    done = run([code for code, _ in cells], tmp_path)
    assert done.returncode == 0, done.stderr
    for (code, said), printed in zip(cells, json.loads(done.stdout), strict=True):
        assert agrees(printed, said), f"{code}\nprints\n{printed}\nand the page says\n{said}"
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("module", ["hydra", "cli.app", "train"])
def test_a_cell_that_needs_more_than_torch_would_fail(module, tmp_path):
    done = run([f"import {module}"], tmp_path)
    assert done.returncode == 1
    assert "ModuleNotFoundError: import of" in done.stderr


def test_what_is_off_by_more_than_rounding_is_seen():
    assert agrees("a 1.38 b 104704", "a 1.37 b 104704")
    for other in (
        "a 1.40 b 104704",
        "a 1.37 b 104705",
        "a 1.37 c 104704",
        "a 1.37 b 104704 1.0",
        "a 1 b 104704",
    ):
        assert not agrees(other, "a 1.37 b 104704")


def test_the_readme_names_the_page():
    assert "](docs/library.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
