"""The small files of a run are read only if they are valid."""

import json
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rundir import metrics
from rundir.run_files import SCHEMAS, read_json
from system import files
from system.files import write_atomically

GOOD = {
    "status.json": {"state": "finished", "step": 3, "saved": 3, "reason": None, "best": None, "final": 2.0},
    "environment.json": {"packages": {"torch": "2"}, "code": {"train.py": "0"}, "earlier": [], "git": None},
    "certificate.json": {
        "start": {
            "causal": True,
            "independent_rows": True,
            "reason": None,
            "context": 8,
            "train": {"future": 0.0, "rows": 0.0},
            "eval": {"future": 0.0, "rows": 0.0},
        },
        "end": None,
    },
    "wandb.json": {"id": "a", "copied": 10},
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.parametrize("name", SCHEMAS)
def test_what_is_written_comes_back(tmp_path, name):
    write_atomically(tmp_path / name, json.dumps(GOOD[name]))
    assert json.loads(json.dumps(read_json(tmp_path / name))) == GOOD[name]


@pytest.mark.slow
@given(data=st.data())
@pytest.mark.parametrize("name", SCHEMAS)
def test_any_content_is_read_as_a_table_or_as_empty(tmp_path_factory, name, data):
    """Any key of the file may hold anything."""
    content = dict(GOOD[name])
    content[data.draw(st.sampled_from([*content]))] = data.draw(JSON)
    file = tmp_path_factory.mktemp("any") / name
    file.write_text(json.dumps(data.draw(st.sampled_from([content, data.draw(JSON)]))), encoding="utf-8")
    found = read_json(file)
    assert isinstance(found, dict)
    if name == "status.json":
        assert found.get("state") != "finished" or isinstance(found["final"], float)


TWICE = json.dumps(GOOD["status.json"])[:-1] + ', "step": 9}'


DEEP = '{"state": ' + "[" * 600 + "]" * 600 + "}"


@pytest.mark.parametrize(
    "content", ["[" * 100_000, DEEP, "", "\0", "{", '{"state": "finished"}', '"x"', TWICE]
)
def test_a_damaged_or_deeply_nested_file_reads_as_empty(tmp_path, content):
    (tmp_path / "status.json").write_text(content)
    assert read_json(tmp_path / "status.json") == {}


def test_a_file_that_is_larger_than_any_of_ours_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr("system.files.LARGEST", 10)
    (tmp_path / "wandb.json").write_text(json.dumps(GOOD["wandb.json"]))
    assert read_json(tmp_path / "wandb.json") == {}


@given(JSON)
def test_lines_of_metrics_that_are_no_rows_are_dropped(tmp_path_factory, other):
    file: Path = tmp_path_factory.mktemp("any") / "metrics.jsonl"
    good = {"step": 1, "tokens": 4, "seconds": 0.5, "val/loss": 2.0, "act.rms/embed": "NaN"}
    odd = {"step": 2, "seconds": 1.0, "val/loss": other}
    lines = [json.dumps(one) for one in (good, other, odd)]
    file.write_text("\n".join([*lines, "[" * 10_000, '{"step": 3, "sec']))
    rows = metrics.rows_before(file, 5)
    assert rows[0] == good
    assert metrics.best_of(rows) is not None
    assert all(isinstance(row["seconds"], float) for row in rows)


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_a_new_folder_has_the_permissions_of_any_other(tmp_path, mask):
    before = os.umask(mask)
    try:
        with files.new_folder(tmp_path / "new", ".new-"):
            pass
        (tmp_path / "other").mkdir()
    finally:
        os.umask(before)
    new, other = (stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("new", "other"))
    assert new == other
