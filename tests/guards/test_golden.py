"""Ten reference runs, written at commit ffc48c0: the losses, and every metric of the last row, are the same
bits on the kind of machine that wrote them, and the same to 1e-4 elsewhere (in bf16 to 1e-2)."""

import importlib.metadata
import json
import math
from pathlib import Path

import pytest

from tests.conftest import LETTERS, configured
from tests.helpers.runs import metric_rows, train_anew
from training.environment import cpuinfo, processor

GOLDEN = json.loads(Path(__file__).with_name("golden.json").read_text(encoding="utf-8"))
HERE = {
    "processor": processor(),
    "family_model": [cpuinfo("cpu family"), cpuinfo("model")],
    "torch": importlib.metadata.version("torch"),
}


@pytest.mark.parametrize("name", GOLDEN["runs"])
def test_a_reference_run_is_what_it_was(tmp_path, name):
    (tmp_path / "text.txt").write_text(LETTERS, encoding="utf-8")
    own = [f"data.path={tmp_path}/text.txt", f"data.cache={tmp_path}/cache", f"runs_dir={tmp_path}/runs"]
    words = (*GOLDEN["common"], *GOLDEN["overrides"][name], *own)
    settings = {word.partition("=")[0]: word for word in words}
    rows = metric_rows(train_anew(configured(*settings.values())))
    expected = GOLDEN["runs"][name]
    actual = {key: [row[key] for row in rows if key in row] for key in ("train/loss", "val/loss")}
    actual["last"] = {key: rows[-1][key] for key in expected["last"]}  # a newer statistic may join them
    assert len(actual["train/loss"]) == 100
    if GOLDEN["here"] == HERE:
        assert actual == expected
    tolerance = 1e-2 if "bf16" in name else 1e-4
    for key in ("train/loss", "val/loss"):
        pairs = zip(actual[key], expected[key], strict=True)
        assert all(math.isclose(a, b, rel_tol=tolerance) for a, b in pairs)
