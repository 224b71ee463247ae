"""Published runs are compared as their folders are, and a stranger's tables do no harm."""

import csv
import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comparison import published, table
from comparison.commands import more_seeds, rerun
from comparison.find import find_runs
from comparison.groups import group_runs
from comparison.load import UnreadableError, load
from comparison.published import cell, flat, load_any, nested, parsed, publish, read
from comparison.report import build_report
from data.errors import UserError
from data.files import write_atomically
from tests.comparison.runs import FAR, NEAR, fair_runs

NAMES = st.text(st.characters(exclude_characters=":"), min_size=1)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(NAMES, inner))


@pytest.fixture
def runs(tmp_path):
    runs = fair_runs(tmp_path / "a", "layernorm", NEAR, [2.0, 2.1, 2.2])
    return runs + fair_runs(tmp_path / "b", "batchnorm", FAR, [1.5, None, 1.7], borrowed=[2.5, 2.6, 2.7])


@given(VALUES)
def test_a_cell_is_read_back_as_it_was(value):
    assert parsed(cell(value)) == value
    assert cell(value)  # an empty cell is a missing value


@settings(max_examples=30)  # drawing nested values is slow
@given(st.dictionaries(NAMES, st.dictionaries(NAMES, VALUES, max_size=3), min_size=1, max_size=3))
def test_paths_lead_back_to_the_nested_content(content):
    assert nested(flat(content)) == content


def test_the_report_of_published_runs_is_that_of_their_folders(runs, tmp_path):
    publish(runs, tmp_path / "published")
    assert {file.name for file in (tmp_path / "published").iterdir()} == {
        "runs.csv",
        "curves.csv",
        "shared.json",
    }
    again = read(tmp_path / "published")
    before, after = build_report(runs), build_report(again)
    assert table.cells(before) == table.cells(after)
    assert table.settings(before) == table.settings(after)
    assert (before.summary, before.warnings) == (after.summary, after.warnings)
    by_name = {run.name: run for run in again}
    for run in runs:
        assert by_name[run.name].certificate == run.certificate
        assert by_name[run.name].status == run.status
        published = by_name[run.name].config
        assert published == {key: run.config[key] for key in published}
        assert "norm.eps" in published


def test_publishing_published_runs_changes_nothing(runs, tmp_path):
    publish(runs, tmp_path / "once")
    publish(read(tmp_path / "once"), tmp_path / "twice")
    for file in (tmp_path / "once").iterdir():
        assert file.read_text() == (tmp_path / "twice" / file.name).read_text()


def test_the_folder_is_found_among_run_folders_and_read_whole(runs, tmp_path):
    publish(runs, tmp_path / "all" / "published")
    runs[0].folder.rename(tmp_path / "all" / "a-run")
    folders = find_runs([str(tmp_path / "all")])
    assert folders == [tmp_path / "all" / "a-run", tmp_path / "all" / "published"]
    assert [len(load_any(folder)[0]) for folder in folders] == [1, len(runs)]


def test_nothing_that_tells_of_the_owner_is_published(runs, tmp_path):
    folder = runs[0].folder
    environment = json.loads((folder / "environment.json").read_text())
    environment |= {"machine": {"host": "secret"}, "command": ["/home/secret/train.py"]}
    words = ["wandb.entity=secret", "hydra.sweep.dir=/secret", "+runs_dir=/secret"]
    environment["overrides"] = ["norm=none", *words]
    (folder / "environment.json").write_text(json.dumps(environment))
    config = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(config.replace("entity: null", "entity: secret"))
    assert "secret" in (folder / "config.yaml").read_text()
    publish([load(folder)[0], *runs[1:]], tmp_path / "published")
    assert [
        run.environment["overrides"] for run in read(tmp_path / "published") if run.name == folder.name
    ] == [["norm=none"]]
    assert "secret" not in "".join(file.read_text() for file in (tmp_path / "published").iterdir())


@pytest.mark.parametrize("word", ["data.path=/secret", "init_from=/secret", "--config-dir=/secret"])
def test_a_run_whose_command_cannot_be_published_has_none(runs, tmp_path, word):
    runs[0].environment["overrides"] = ["norm=none", word]
    publish(runs, tmp_path / "published")
    [run] = [run for run in read(tmp_path / "published") if run.name == runs[0].name]
    assert rerun(run) == more_seeds(group_runs([run], "val/full_loss"), 3) == ""
    publish([run], tmp_path / "again")
    assert rerun(read(tmp_path / "again")[0]) == ""
    assert "secret" not in "".join(file.read_text() for file in (tmp_path / "published").iterdir())


def test_tables_are_not_written_among_other_files(runs, tmp_path):
    with pytest.raises(UserError, match="it has other files, such as a; name a folder of its own"):
        publish(runs, tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "runs.csv").write_text("mine")
    with pytest.raises(UserError, match="it has other files, such as runs.csv; name a folder of its own"):
        publish(runs, tmp_path / "mine")
    for _ in range(2):
        publish(runs, tmp_path / "published")
        (tmp_path / "published" / ".DS_Store").touch()


def change(file, column, value):
    with file.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    rows[0][column] = value
    with file.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


@pytest.mark.parametrize(
    ("column", "value", "problem"),
    [
        ("name", "../../etc", "is not the name of a run"),
        ("config:optim.learning_rate", "fast", "optim.learning_rate"),
        ("config:optim.learning_rate", "Infinity", "optim.learning_rate"),
        ("config:seed", "[[[", "seed"),
        ("status:state", "running", "running at step"),
        ("metric:val/full_loss", "", "it has finished, but has no val/full_loss"),
        ("metric:val/full_loss", "low", "could not convert"),
    ],
)
def test_an_invalid_cell_is_named(runs, tmp_path, column, value, problem):
    publish(runs, tmp_path / "published")
    change(tmp_path / "published" / "runs.csv", column, value)
    with pytest.raises(UnreadableError, match=problem):
        read(tmp_path / "published")


def test_a_run_or_a_value_that_is_there_twice_is_refused(runs, tmp_path):
    folder = tmp_path / "published"
    publish(runs, folder)
    table = (folder / "runs.csv").read_text()
    (folder / "runs.csv").write_text(table + table.splitlines()[1] + "\n")
    with pytest.raises(UnreadableError, match="is there twice"):
        read(folder)
    (folder / "runs.csv").write_text(table)
    shared = json.loads((folder / "shared.json").read_text())
    (folder / "shared.json").write_text(json.dumps(shared | {"metric:val/full_loss": 1.0}))
    with pytest.raises(UnreadableError, match="both have metric:val/full_loss"):
        read(folder)


@pytest.mark.parametrize("name", ["runs.csv", "curves.csv", "shared.json"])
@pytest.mark.parametrize("content", [b"", b"\xff\x00", b"[1,2]", b"name\n", b"{" * 10**5])
def test_a_damaged_table_is_one_line(runs, tmp_path, name, content):
    publish(runs, tmp_path / "published")
    (tmp_path / "published" / name).write_bytes(content)
    with pytest.raises(UnreadableError):
        read(tmp_path / "published")


def test_a_table_of_curves_that_ends_early_is_damaged(runs, tmp_path):
    publish(runs, tmp_path / "p")
    file = tmp_path / "p" / "curves.csv"
    *rows, last = file.read_text().splitlines(keepends=True)
    file.write_text("".join(rows))
    name, step, *_ = last.split(",")
    with pytest.raises(UnreadableError, match=f"damaged: curves.csv: {name} does not reach its step {step}"):
        read(tmp_path / "p")
    file.write_bytes(b"name,step\rx,1\n")
    with pytest.raises(UnreadableError, match="curves.csv"):
        read(tmp_path / "p")


def test_a_folder_that_is_named_as_a_number_is_published(runs, tmp_path):
    renamed = [replace(run, folder=run.folder.parent / f"{i}23") for i, run in enumerate(runs, start=1)]
    publish(renamed, tmp_path / "p")
    assert sorted(run.name for run in read(tmp_path / "p")) == sorted(run.name for run in renamed)
    assert all(len(run.axes["step"]) for run in read(tmp_path / "p"))


def test_a_folder_that_cannot_be_read_is_passed_over(runs, tmp_path, monkeypatch):
    def exists(path, *args, **kwargs):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("pathlib.Path.exists", exists)
    with pytest.raises(UnreadableError, match="Permission denied"):
        load_any(tmp_path)


def test_tables_that_could_not_be_read_again_are_not_written(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(published, "LARGEST", 100)
    with pytest.raises(UserError, match=r"runs\.csv: would have more than 100 bytes, which is not read; "):
        publish(runs, tmp_path / "published")
    assert not (tmp_path / "published").exists()


def test_publishing_that_was_interrupted_can_be_repeated(runs, tmp_path, monkeypatch):
    def write(file, text):
        if file.name == published.CURVES_FILE:
            raise OSError("No space left on device")
        write_atomically(file, text)

    monkeypatch.setattr(published, "write_atomically", write)
    with pytest.raises(OSError, match="No space left"):
        publish(runs, tmp_path / "published")
    monkeypatch.undo()
    publish(runs, tmp_path / "published")
    assert len(read(tmp_path / "published")) == len(runs)
