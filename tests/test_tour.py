"""docs/tour.ipynb has the cells of its source, docs/tour.py; they run, and print what the notebook shows."""

import re

import jupytext
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode

from tests.conftest import ROOT

NOTEBOOK, SOURCE = jupytext.read(ROOT / "docs/tour.ipynb"), jupytext.read(ROOT / "docs/tour.py")


def code(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def printed(cell: NotebookNode) -> str:
    """Return what a cell prints, without numbers and rules, which differ between machines, and spaces."""
    text = "".join(output.get("text", "") for output in cell.outputs)
    return re.sub(r"\s|─", "", re.sub(r"[+-]?\d+(\.\d+)?(e[+-]\d+)?|\bnan\b", "#", text))


def pictures(notebook: NotebookNode) -> int:
    return sum(
        "image/svg+xml" in output.get("data", {}) for cell in code(notebook) for output in cell.outputs
    )


def test_the_notebook_has_the_cells_of_its_source_and_the_outputs_of_one_execution():
    cells = [[(cell.cell_type, cell.source) for cell in book.cells] for book in (NOTEBOOK, SOURCE)]
    assert cells[0] == cells[1], "write docs/tour.ipynb anew, as CONTRIBUTING.md says"
    assert [cell.execution_count for cell in code(NOTEBOOK)] == [*range(1, len(code(SOURCE)) + 1)]
    assert pictures(NOTEBOOK) == 3
    assert not re.search(r"/tmp/|/home/|/root/|/Users/", str(NOTEBOOK))


@pytest.mark.long
def test_the_cells_run_and_print_the_words_of_the_notebook():
    again = NotebookClient(
        jupytext.read(ROOT / "docs/tour.py"), resources={"metadata": {"path": ROOT / "docs"}}
    )
    again.execute()
    assert [*map(printed, code(again.nb))] == [*map(printed, code(NOTEBOOK))]
    assert pictures(again.nb) == 3
