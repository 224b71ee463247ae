"""Run the cells of docs/tour.py, and write them with what they print and draw as docs/tour.ipynb.

    python -m scripts.notebook

A cell begins with ``# %%``, a text with ``# %% [markdown]``. A picture is a cell's last expression, an object
with ``_repr_svg_``, as in Jupyter, which is not needed here."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from cli import programs
from cli.errors import one_line_errors

ROOT = Path(__file__).parents[1]
SOURCE, NOTEBOOK = ROOT / "docs/tour.py", ROOT / "docs/tour.ipynb"
END, PICTURE = "␃", "␎"  # printed after each cell, and before a picture
SHOW = f"def show(value):\n    if value is not None:\n        print({PICTURE!r} + value._repr_svg_())\n"
PYTHON = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
Cell = dict[str, Any]


def cells(source: str) -> list[Cell]:
    """Return the cells of a source as a notebook's, without outputs."""
    return [cell(number, *part.split("\n", 1)) for number, part in enumerate(source.split("# %%")[1:])]


def cell(number: int, mark: str, text: str) -> Cell:
    kind: Cell = {"cell_type": "code", "execution_count": None, "outputs": []}
    if mark == " [markdown]":
        kind, text = {"cell_type": "markdown"}, re.sub("^# ?", "", text, flags=re.MULTILINE)
    return {"id": f"cell-{number}", "metadata": {}, "source": text.strip().splitlines(True)} | kind


def program(code: str) -> str:
    """Return a cell as part of a program, which shows the cell's last expression as a notebook does."""
    lines, last = code.splitlines(), ast.parse(code).body[-1]
    if isinstance(last, ast.Expr):
        lines = [*lines[: last.lineno - 1], "show(", *lines[last.lineno - 1 :], ")"]
    return "\n".join([*lines, f"print({END!r}, end='')", ""])


def run(code: list[Cell]) -> None:
    """Run code cells in one new process, and set their outputs. Raises CalledProcessError if one fails."""
    text = SHOW + "".join(program("".join(cell["source"])) for cell in code)
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "encoding": "utf-8", "check": True, "cwd": ROOT}
    print("running the cells", file=sys.stderr, flush=True)
    printed = subprocess.run([sys.executable, "-"], input=text, **options).stdout.split(END)
    for number, (cell, part) in enumerate(zip(code, printed[:-1], strict=True), start=1):
        out, _, svg = (half.splitlines(True) for half in part.partition(PICTURE))
        stream = {"output_type": "stream", "name": "stdout", "text": out}
        picture = {"output_type": "display_data", "metadata": {}, "data": {"image/svg+xml": svg}}
        cell |= {"execution_count": number, "outputs": [stream] * bool(out) + [picture] * bool(svg)}


def main() -> None:
    programs.parser(__doc__, "scripts.notebook").parse_args()
    with one_line_errors():
        notebook = cells(SOURCE.read_text(encoding="utf-8"))
        run([cell for cell in notebook if cell["cell_type"] == "code"])
        content = {"cells": notebook, "metadata": PYTHON, "nbformat": 4, "nbformat_minor": 5}
        NOTEBOOK.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
