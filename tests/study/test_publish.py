"""A published study says what the study said; a damaged table is refused in one line."""

import csv
import io
import json
import shutil
from dataclasses import asdict, replace

import pytest

from data.errors import ConfigError
from scripts.publish import publish
from study.publish import CURVES, RUNS
from study.report import load
from tests.conftest import ROOT
from tests.helpers.studies import BASE, OTHER, REPORT, WRITTEN, write_study

PRIVATE = ["data.path=/home/me/my.txt"]


@pytest.fixture
def folder(tmp_path):
    """A study of two arms that ran here, extended, with two trials each, of which one diverged. The other arm
    leaks in training, and one of its seeds diverged."""
    other = {"leak": "train", "curve": ((0, 4.0), (50, 1 / 3)), "status": {"reason": 'it said "no", twice'}}
    write_study(
        tmp_path / "study",
        {BASE: [2.0, 2.1, 1.9, 2.05], OTHER: [2.2, None, 2.1 + 1e-15, 3.5]},
        tried=(None, 2.3),
        options={OTHER: other, BASE: {"status": {"collapsed": True}}},
        runs_dir=str(tmp_path / "runs"),
        seeds=2,
        metric=REPORT,
        declared_by=["study=norms", *PRIVATE, "--config-dir", "mine"],
        words=["train.steps=6", "wandb.entity=me", *PRIVATE],
    )
    return tmp_path / "study"


@pytest.fixture
def published(folder, tmp_path):
    publish(folder, tmp_path / "published")
    return tmp_path / "published"


def test_a_published_study_gives_the_same_table(folder, published):
    live, table = load(folder), load(published)
    assert [asdict(row) for row in table.rows] == [asdict(row) for row in live.rows]
    assert (table.trials, table.warnings, table.notes) == (live.trials, live.warnings, live.notes)
    assert (table.conclusion, table.caption, table.extended) == (live.conclusion, live.caption, True)
    for title, runs in live.runs.items():
        for seed, run in runs.items():
            assert replace(run, folder=None) == table.runs[title][seed]
    assert [(row.diverged, row.collapsed) for row in table.rows] == [(0, 4), (1, 0)]


def test_all_runs_are_in_the_table_with_what_they_were_for_and_nothing_of_their_owner(published):
    header, first, *lines = (published / RUNS).read_text().splitlines()
    assert header.startswith("name,arm,roles,seed,optim.learning_rate,state,reason,collapsed,val/full_loss")
    assert first.startswith(f"trial0-0,{BASE},trial,0,0.001,diverged")
    assert len(lines) + 1 == 2 * (2 + 4)
    reason = '"it said ""no"", twice",false,,,,,training'
    assert any(line.startswith(f"arm1-s11,{OTHER},compared,11,0.002,diverged,{reason}") for line in lines)
    study = load(published).study
    assert (study.runs_dir, study.config_dir) == ("", None)
    assert (study.declared_by, study.words) == (["study=norms"], ["train.steps=6"])
    assert "/home" not in "".join(file.read_text() for file in published.iterdir())


def test_a_study_is_published_again_but_never_over_another_one(folder, published, tmp_path, capsys):
    before = {file.name: file.read_bytes() for file in published.iterdir()}
    publish(folder, published)
    assert "published/: 12 runs" in capsys.readouterr().out
    assert {file.name: file.read_bytes() for file in published.iterdir()} == before
    (published / "notes.md").write_text("mine")
    shutil.copytree(ROOT / "results/atlas_muon", tmp_path / "muon")
    for study, out, line in (
        (folder, published, "it has other files, such as notes.md; name a new folder"),
        (folder, tmp_path / "muon", "it has other files"),
        (published, tmp_path / "x", "is published already; copy the folder"),
    ):
        with pytest.raises(ConfigError, match=line):
            publish(study, out)


def test_more_seeds_of_a_published_study_are_a_new_study():
    _, command = load(ROOT / "results/atlas_muon").advice
    assert "name=atlas_muon_" in command
    assert "extend" not in command


# ---------------------------------------------------------------------------------------------------
# A stranger's tables


def changed(text, column, value):
    """Return a table with another cell in its last line."""
    rows = [*csv.reader(text.splitlines())]
    rows[-1][rows[0].index(column)] = value
    csv.writer(stream := io.StringIO()).writerows(rows)
    return stream.getvalue()


CELLS = {
    (RUNS, REPORT): ("true", "1e308", "nan", "[1]", ""),
    (CURVES, "val/loss"): ("true", "nan"),
    (CURVES, "step"): ("0.5", "-1", "9" * 300, ""),
    (RUNS, "state"): ("running", ""),
    (RUNS, "leaks"): ("no", "training; "),
    (RUNS, "began"): ("2026-11-29", "yesterday"),
    (RUNS, "peak_memory"): ("1.5",),
    (RUNS, "name"): ("", "arm0-s10", "another"),
}
DAMAGE = {
    "no column name": lambda text: text.replace("name,", "label,", 1),
    "a cell less": lambda text: text[: text.rindex(",")],
    "three cells more": lambda text: text.rstrip("\n") + ",1,2,3\n",
    "nothing": lambda text: "",
    "too many columns": lambda text: "a," * 1001 + text,
    "no end of a cell": lambda text: text + '"' + "a\n" * 200_000,
    "not UTF-8": lambda text: text + "\udcff\n",
}


def test_a_damaged_table_is_refused_in_one_line(published):
    damaged = [
        (table, changed((published / table).read_text(), column, wrong))
        for (table, column), values in CELLS.items()
        for wrong in values
    ]
    damaged += [
        (name, to((published / name).read_text())) for name in (RUNS, CURVES) for to in DAMAGE.values()
    ]
    for table, text in damaged:
        before = (published / table).read_bytes()
        (published / table).write_text(text, errors="surrogateescape")
        with pytest.raises(ConfigError, match=r"\.csv: line \d+: [^\n]*; restore the file$"):
            load(published)
        (published / table).write_bytes(before)


def test_a_run_whose_beginning_is_not_known_began_before_any_study(published):
    (published / RUNS).write_text(changed((published / RUNS).read_text(), "began", ""))
    assert load(published).runs[OTHER][91].began < WRITTEN


def test_a_damaged_json_file_is_one_line_and_a_lost_table_is_named(published):
    text = (published / "study.json").read_text()
    changes = ({"schema": 2}, {"written": "2026-11-29"}, {"another": 1}, {"comparisons": 0})
    for name in ("study.json", "chosen.json", "extended.json"):
        wrong = ["", "[1]", '{"arms": {"a": 5}, "runs": [3]}', "[" * 200_000]
        wrong += [json.dumps(json.loads(text) | each) for each in changes] if name == "study.json" else []
        before = (published / name).read_text()
        for content in wrong:
            (published / name).write_text(content)
            with pytest.raises(ConfigError, match=rf"/{name}: is damaged \([^\n]*; restore it"):
                load(published)
        (published / name).write_text(before)
    (published / CURVES).unlink()
    with pytest.raises(FileNotFoundError, match=r"curves\.csv"):
        load(published)
