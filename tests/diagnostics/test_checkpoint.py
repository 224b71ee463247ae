"""python -m diagnostics.checkpoint looks at any run's checkpoint, or at a file."""

import re
import subprocess
import sys

from diagnostics import checkpoint
from tests.conftest import ROOT
from tests.test_train import run


def started(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "diagnostics.checkpoint", *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_it_prints_a_line_a_block_and_draws_a_map_a_norm(tiny, tmp_path):
    folder = run(tiny("norm=dyt", "placement=peri"))
    done = started(folder, "--windows", 5, "--out", tmp_path / "maps.svg")
    assert done.returncode == 0, done.stderr
    assert re.search(r"norm=dyt placement=peri, step 6: loss \d\.\d{4} on 5 windows", done.stdout)
    assert re.search(r"^ +00 +[+-]0\.\d{4} +0\.\d{4} +\d", done.stdout, re.M)
    assert re.search(r"^ +01 ", done.stdout, re.M)
    drawn = (tmp_path / "maps.svg").read_text()
    for site in ("00.attn.pre", "01.mlp.out", "final"):
        assert f">{site}<" in drawn
    [newest] = folder.glob("checkpoints/step-*6.safetensors")
    assert (
        started(newest, "--windows", 5, "--out", tmp_path / "other.png").stdout.splitlines()[:6]
        == (done.stdout.splitlines()[:6])
    )
    assert (tmp_path / "other.png").read_bytes().startswith(b"\x89PNG")


def test_its_numbers_are_those_of_the_diagnostics(tiny):
    folder = run(tiny())
    said, rows, maps = checkpoint.look(folder, windows=6, trust=None)
    assert len(rows) == 3
    assert "cost" not in rows[0]
    assert set(maps) == {"00.attn.pre", "00.mlp.pre", "01.attn.pre", "01.mlp.pre", "final"}
    assert all(0 <= row["distance"] <= 1 for row in rows[1:])
    assert float(re.search(r"loss (\S+)", said)[1]) > 0


def test_what_is_wrong_is_one_line(tiny, tmp_path, text_file):
    folder = run(tiny())
    for arguments, said in (
        ((tmp_path,), "no checkpoint there"),
        ((folder, "--out", "maps.txt"), "should end in .svg, .png or .pdf"),
        ((folder, "--windows", 0), "--windows: at least 1"),
    ):
        done = started(*arguments)
        assert done.returncode != 0
        assert said in done.stderr
        assert "Traceback" not in done.stderr
    text_file.write_text(text_file.read_text() + "more")
    done = started(folder, "--out", tmp_path / "maps.svg")
    assert "its text is not the one it was trained on" in done.stderr
    assert not (tmp_path / "maps.svg").exists()


def test_a_model_without_norms_has_no_picture_but_a_table(tiny, tmp_path):
    folder = run(tiny("norm=none"))
    done = started(folder, "--out", tmp_path / "maps.svg")
    assert done.returncode == 0, done.stderr
    assert "angular distance" in done.stdout
    assert "no norm, so no picture" in done.stdout
    assert not (tmp_path / "maps.svg").exists()
