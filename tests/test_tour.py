"""docs/tour.ipynb has the cells of its source, docs/tour.py; they run, and show what the notebook shows."""

import json
import re
import subprocess

import pytest

from scripts.notebook import NOTEBOOK, SOURCE, cells, run
from tests.conftest import ROOT

CELLS = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
WITHOUT_OUTPUTS = {"execution_count": None, "outputs": []}


def code(cells: list[dict]) -> list[dict]:
    return [cell for cell in cells if cell["cell_type"] == "code"]


def words(cell: dict) -> str:
    """Return what a cell prints, without numbers and rules, which differ between machines, and spaces."""
    printed = "".join(line for output in cell["outputs"] for line in output.get("text", []))
    return re.sub(r"\s|─", "", re.sub(r"[+-]?\d+(\.\d+)?(e[+-]\d+)?|\bnan\b", "#", printed))


def kinds(cell: dict) -> list[str]:
    return [output["output_type"] for output in cell["outputs"]]


def test_the_notebook_has_the_cells_of_its_source():
    assert len(CELLS) > 20
    bare = [cell | WITHOUT_OUTPUTS if cell["cell_type"] == "code" else cell for cell in CELLS]
    assert bare == cells(SOURCE.read_text(encoding="utf-8")), "run python -m scripts.notebook"


def test_the_notebook_has_outputs_and_pictures_and_names_no_folder_of_the_machine_that_ran_it():
    assert [cell["execution_count"] for cell in code(CELLS)] == [*range(1, len(code(CELLS)) + 1)]
    shown = [kind for cell in CELLS if cell["cell_type"] == "code" for kind in kinds(cell)]
    assert shown.count("display_data") == 3
    assert shown.count("stream") > 12
    text = NOTEBOOK.read_text(encoding="utf-8")
    assert not re.search(r"/tmp/|/home/|/root/|/Users/", text)
    assert str(ROOT) not in text


def test_pictures_are_drawn_and_a_cell_that_fails_is_an_error(capfd):
    picture = "class Picture:\n    def _repr_svg_(self):\n        return '<svg/>'"
    [_, drawn] = notebook = cells(f"# %%\n{picture}\n# %%\nprint(1)\nPicture()\n")
    run(notebook)
    assert kinds(drawn) == ["stream", "display_data"]
    assert drawn["outputs"][1]["data"]["image/svg+xml"] == ["<svg/>\n"]
    with pytest.raises(subprocess.CalledProcessError):
        run(cells("# %%\nassert 1 == 2, 'by intent'\n"))
    assert "by intent" in capfd.readouterr().err


@pytest.mark.long
def test_the_cells_run_and_print_the_words_of_the_notebook():
    again = code(cells(SOURCE.read_text(encoding="utf-8")))
    run(again)
    for before, now in zip(code(CELLS), again, strict=True):
        assert kinds(now) == kinds(before)
        assert words(now) == words(before)
