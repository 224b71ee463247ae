"""Figures of a study as files."""

import shutil

from tests.conftest import ROOT
from tests.helpers.contract import check_refused


def test_a_study_is_drawn_once_an_arm_has_ended(succeed, command, tmp_path):
    succeed("scripts/draw.py", str(ROOT / "results/norms"), "--out", "figures")
    for name in ("intervals", "curves"):
        assert "torch_layernorm pre" in (tmp_path / "figures" / f"{name}.svg").read_text()
    (tmp_path / "new").mkdir()
    shutil.copy(ROOT / "results/norms/study.json", tmp_path / "new")
    for name in ("runs.csv", "curves.csv"):
        head = (ROOT / "results/norms" / name).read_text().splitlines(keepends=True)[0]
        (tmp_path / "new" / name).write_text(head)
    check_refused(command("scripts/draw.py", "new"), "new: no arm has ended yet")
