"""A published study says what the study said; a damaged table is refused in one line."""

import json
import shutil
from dataclasses import asdict, replace

import pytest

from data.errors import ConfigError
from scripts.publish import publish
from study.files import write_once
from study.publish import CURVES, RUNS
from study.report import load
from tests.conftest import ROOT
from tests.study.test_runs import REPORT, write_run
from tests.study.test_statistics import BASE, OTHER, WRITTEN, a_study

RATE = "optim.learning_rate"


@pytest.fixture
def folder(tmp_path):
    """A study of two arms that ran here, with two trials each: extended, with a diverged and a collapsed
    seed, and a trial that diverged."""
    ends = {BASE: [2.0, 2.1, 1.9, 2.05], OTHER: [2.2, None, 2.1 + 1e-15, 3.5]}
    arms, chosen, further = [], {}, {}
    study = a_study(
        runs_dir=str(tmp_path / "runs"),
        tune={RATE: "log 1e-3 1e-2"},
        trials=[{RATE: 0.001}, {RATE: 0.003}],
        trial_seeds=[0, 1],
        seeds=2,
        metric=REPORT,
        declared_by=["study=norms", "data.path=/home/me/my.txt", "--config-dir", "mine"],
        words=["train.steps=6", "wandb.entity=me", "data.path=/home/me/my.txt"],
    )
    for arm in study.arms:
        label = arm.title.split()[0].removeprefix("norm=")
        trials = [[f"{label}-{setting}-{seed}" for seed in study.trial_seeds] for setting in (1, 2)]
        names = [f"{label}-{seed}" for seed in (*study.seeds, *study.further_seeds)]
        arms.append(arm.model_copy(update={"trials": trials}))
        select = {"val/select_loss": 2.3}
        write_run(tmp_path / "runs" / trials[0][0], None if label == "rmsnorm" else 2.4, end=select)
        write_run(tmp_path / "runs" / trials[1][0], 2.3, end=select)
        write_run(tmp_path / "runs" / trials[1][1], 2.3, end=select)
        for name, end in zip(names, ends[arm.title], strict=True):
            curve = ((0, 4.0), (50, 1 / 3))
            diverged = {"status": {"reason": 'it said "no", twice'}} if end is None else {}
            collapsed = {"status": {"collapsed": True}} if end == 3.5 else diverged
            leak = "train" if label == "rmsnorm" else None
            write_run(tmp_path / "runs" / name, end, curve, leak=leak, **collapsed)
        choice = {"settings": {RATE: 0.003}, "trial": 1, "half_the_trials": 0.01, "edges": [RATE]}
        chosen[arm.title] = choice | {"reason": None, "runs": names[:2]}
        further[arm.title] = names[2:]
    (tmp_path / "studies").mkdir()
    study = study.model_copy(update={"arms": arms})
    write_once(tmp_path / "studies" / "study.json", study.model_dump(by_alias=True))
    write_once(tmp_path / "studies" / "chosen.json", {"written": study.written, "arms": chosen})
    write_once(tmp_path / "studies" / "extended.json", {"seeds": study.further_seeds, "runs": further})
    return tmp_path / "studies"


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
    assert [row.diverged for row in table.rows] == [0, 1]
    assert table.rows[1].collapsed == 1


def test_all_runs_that_ended_are_in_the_table_with_what_they_were_for(published):
    lines = (published / RUNS).read_text().splitlines()
    assert lines[0].startswith(f"name,arm,roles,seed,{RATE},state,reason,collapsed,val/full_loss")
    assert len(lines) == 1 + 2 * (3 + 4)  # the second seed of the worse setting was never tried
    assert f"layernorm-1-0,{BASE},trial,0,0.001,finished" in lines[1]
    [line] = [line for line in lines if line.startswith("rmsnorm-11,")]
    assert line.startswith(
        f'rmsnorm-11,{OTHER},compared,11,0.003,diverged,"it said ""no"", twice",false,,,,,training'
    )


def test_paths_and_names_of_their_owner_are_left_out(published):
    study = load(published).study
    assert (study.runs_dir, study.config_dir) == ("", None)
    assert study.declared_by == ["study=norms"]
    assert study.words == ["train.steps=6"]
    assert "/home" not in "".join(file.read_text() for file in published.iterdir())


def test_a_study_is_published_again_but_never_over_another_one(folder, published, tmp_path, capsys):
    before = {file.name: file.read_bytes() for file in published.iterdir()}
    publish(folder, published)
    assert "published/: 14 runs" in capsys.readouterr().out
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


def test_more_seeds_of_a_published_study_are_a_new_study(tmp_path):
    for each in ("muon", "text", "deep"):
        _, command = load(ROOT / f"results/atlas_{each}").advice
        assert f"name=atlas_{each}_" in command
        assert "extend" not in command


# ---------------------------------------------------------------------------------------------------
# A stranger's tables


def change(file, column, value):
    """Set a cell of the last line."""
    header, *lines = file.read_text().splitlines()
    cells = lines[-1].split(",")
    cells[header.split(",").index(column)] = value
    file.write_text("\n".join([header, *lines[:-1], ",".join(cells)]) + "\n")


CELLS = [
    *((RUNS, REPORT, wrong) for wrong in ("true", "1e308", "nan", "inf", "1" * 400, "[1]", "")),
    *((CURVES, "val/loss", wrong) for wrong in ("true", "1e308", "nan")),
    *((CURVES, "step", wrong) for wrong in ("0.5", "-1", "9" * 300, "")),
    *((RUNS, "state", wrong) for wrong in ("running", "")),
    *((RUNS, "leaks", wrong) for wrong in ("no", "training; ")),
    *((RUNS, "began", wrong) for wrong in ("2026-11-29", "yesterday")),
    *((RUNS, "peak_memory", wrong) for wrong in ("1.5", "9" * 300)),
    *((RUNS, "name", wrong) for wrong in ("", "layernorm-10", "another")),
]


@pytest.mark.parametrize(("table", "column", "wrong"), CELLS)
def test_a_wrong_cell_is_refused_in_one_line(published, table, column, wrong):
    change(published / table, column, wrong)
    with pytest.raises(ConfigError, match=r"\.csv: line \d+: [^\n]*; restore the file$"):
        load(published)


DAMAGE = {
    "no column name": lambda text: text.replace("name,", "label,", 1),
    "a cell less": lambda text: text[: text.rindex(",")],
    "two cells": lambda text: text + "a,b\n",
    "three cells more": lambda text: text.rstrip("\n") + ",1,2,3\n",
    "nothing": lambda text: "",
    "a million columns": lambda text: "a," * 1_000_000 + text,
    "no end of a cell": lambda text: text + '"' + "a\n" * 200_000,
    "not UTF-8": lambda text: text.encode() + b"\xff\n",
    "JSON": lambda text: json.dumps({"name": 1}),
}


@pytest.mark.parametrize("table", [RUNS, CURVES])
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_table_is_refused_in_one_line(published, table, damage):
    damaged = DAMAGE[damage]((published / table).read_text())
    (published / table).write_bytes(damaged if isinstance(damaged, bytes) else damaged.encode())
    with pytest.raises(ConfigError, match=rf"{table}: line \d+: [^\n]*; restore the file$"):
        load(published)


def test_a_run_whose_beginning_is_not_known_began_before_any_study(published):
    change(published / RUNS, "began", "")
    assert load(published).runs[OTHER][91].began < WRITTEN


def test_a_lost_table_is_named(published):
    (published / CURVES).unlink()
    with pytest.raises(FileNotFoundError, match=r"curves\.csv"):
        load(published)


@pytest.mark.parametrize("name", ["study.json", "chosen.json", "extended.json"])
def test_a_damaged_json_file_is_one_line(published, name):
    for content in ("", "[1]", "{", '{"arms": {"a": 5}, "runs": [3]}', "[" * 200_000):
        (published / name).write_text(content)
        with pytest.raises(ConfigError, match=rf"/{name}: is damaged \([^\n]*; restore it"):
            load(published)


def test_a_study_of_another_version_or_made_by_hand_is_one_line(published):
    text = (published / "study.json").read_text()
    for change in ({"schema": 2}, {"written": "2026-11-29"}, {"another": 1}, {"comparisons": 0}):
        (published / "study.json").write_text(json.dumps(json.loads(text) | change))
        with pytest.raises(ConfigError, match=r"/study\.json: is damaged \([^\n]*$"):
            load(published)
