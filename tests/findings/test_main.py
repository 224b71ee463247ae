"""python -m findings as its user starts it: it lists, measures, keeps and resumes."""

import subprocess
import sys

import pytest

from findings import __main__ as program
from findings.finding import load_findings
from tests.conftest import ROOT, TINY
from tests.helpers import programs

PROGRAM = "findings/__main__.py"
MINE = """
claim: A norm keeps the stream.
source: nobody
minutes: 1
trains: true
all: {data: text, data.path: TEXT, SIZES}
arms:
  with: {norm: layernorm}
  without: {norm: none}
seeds: [0, 1, 2]
measure: findings.measures.final_losses
expected:
  loss of with: {above: 0, why: "it is a loss"}
picture: {x: step, y: val/loss}
"""


def test_it_lists_every_finding_with_its_verdict_and_does_not_import_torch(tmp_path):
    code = "import sys; from findings.__main__ import main; main(); sys.exit('torch' in sys.modules)"
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in load_findings())
    assert "PASS           1 min  cancellation: A variance computed as E[x²] − E[x]²" in done.stdout
    assert "not measured  " not in done.stdout


@pytest.fixture
def mine(tmp_path, text_file):
    """The file of a finding whose six runs take a second each."""
    sizes = ", ".join(word.replace("=", ": ") for word in TINY)
    file = tmp_path / "mine" / "finding" / "tiny.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(MINE.replace("TEXT", str(text_file)).replace("SIZES", sizes))
    return file


@pytest.mark.slow
def test_a_finding_of_ones_own_is_trained_measured_once_kept_and_drawn(tmp_path, mine):
    words = (PROGRAM, "tiny", "--config-dir", str(mine.parents[1]))
    first = programs.succeed(*words, cwd=tmp_path).stdout
    assert "6 runs: 6 to do" in first
    assert "PASS  tiny: A norm keeps the stream." in first
    out = tmp_path / "runs" / "findings"
    assert (out / "tiny.svg").read_text().startswith("<svg")
    assert "runs:" not in programs.succeed(*words, cwd=tmp_path).stdout  # its numbers are kept
    (out / "tiny.json").unlink()
    assert "6 runs: all have ended" in programs.succeed(*words, cwd=tmp_path).stdout
    assert [folder.name for folder in (tmp_path / "runs").iterdir()] == ["findings"]


def test_a_mistake_is_one_line(tmp_path, mine, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = mine.read_text()
    for old, new, name, error in (
        ("", "", "tinny", "did you mean tiny?"),
        ("final_losses", "final_loss", "tiny", "measure: findings.measures.final_loss cannot be imported"),
        ("norm: layernorm", "nrm: layernorm", "tiny", "did you mean norm?"),
    ):
        mine.write_text(text.replace(old, new))
        monkeypatch.setattr(sys, "argv", ["findings", name, "--config-dir", "mine"])
        with pytest.raises(SystemExit) as end:
            program.main()
        assert end.value.code == 1
        [line] = capsys.readouterr().err.splitlines()
        assert line.startswith("error: ")
        assert error in line
