"""compare.py as a user sees it: tables of real runs and of studies, a page, refusals in one line."""

import json
import resource
import subprocess
import sys

import pytest

import compare
from study.files import write_once
from study.page import OURS
from study.table import SCHEMA
from tests.conftest import ROOT, TINY
from tests.helpers import programs
from tests.helpers.contract import check_refused
from tests.helpers.programs import PATIENCE
from tests.study.test_loose import BASE, LAYER, OTHER, RMS, write, write_all
from tests.study.test_runs import write_run
from tests.study.test_statistics import WORSE, a_study

PAGE = "index.html"


@pytest.fixture
def main(tmp_path, monkeypatch, capsys):
    """Return a function that runs compare.py here, in an empty folder: (exit status, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["compare.py", *map(str, arguments)])
        try:
            status = compare.main() or 0
        except SystemExit as end:
            status = end.code
        return status, *capsys.readouterr()

    return run


def write_study(folder, runs_dir, losses=WORSE):
    """Write a study whose runs have ended at these losses."""
    study = a_study(*losses, runs_dir=str(runs_dir))
    chosen = {"arms": {}}
    for title, values in losses.items():
        names = [f"{title.split()[0]}-{seed}" for seed in study.seeds]
        chosen["arms"][title] = {"runs": names, "settings": {}}
        for name, loss in zip(names, values, strict=True):
            write_run(runs_dir / name, loss)
    folder.mkdir(parents=True)
    write_once(folder / "study.json", study.model_dump(by_alias=True))
    write_once(folder / "chosen.json", chosen)


# ---------------------------------------------------------------------------------------------------
# Loose runs


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A folder with real runs of two norms and three seeds, a diverged run, and a folder that is no run."""
    folder = tmp_path_factory.mktemp("swept")
    (folder / "text.txt").write_text("Now is the winter of our discontent made glorious summer. " * 60)
    base = ("-m", *TINY, "data=text", "data.path=text.txt", "stats.every=1")
    for more in (
        ("norm=layernorm,batchnorm", "seed=0,1,2"),
        ("norm=none", "optim.learning_rate=1e30", "train.grad_clip=0"),
    ):
        programs.succeed("train.py", *base, *more, cwd=folder)
    (folder / "runs" / "notes").mkdir()
    with next(folder.glob("runs/batchnorm-*/metrics.jsonl")).open("a") as stream:
        stream.write('{"step": 10')
    return folder


@pytest.mark.slow
def test_real_runs_become_a_table_and_a_page(swept):
    done = programs.succeed("compare.py", cwd=swept)
    assert done.stdout.startswith("7 runs in 3 groups; lowest mean validation loss: ")
    table = {line.split()[0]: line for line in done.stdout.splitlines() if line.split()}
    assert "baseline" in table["layernorm"]
    assert "[" in table["batchnorm"]
    assert "LEAKS in training" in table["batchnorm"]
    assert "1 of 1 diverged" in table["none"]
    assert "so there are no verdicts" in done.stdout
    assert "warning" not in done.stdout
    assert "page: report/index.html" in done.stdout
    assert "LEAKS in training" in (swept / "report" / PAGE).read_text()
    assert (swept / "report" / PAGE).stat().st_size < 2e6


@pytest.mark.slow
def test_the_study_that_the_table_advises_can_be_declared(swept):
    command = programs.succeed("compare.py", "runs/*-s*", cwd=swept).stdout.split("python ablate.py ")[1]
    words = command.splitlines()[0].split()
    assert "norm=layernorm,batchnorm,none" in words
    assert "train.steps=6" in words
    dry = programs.succeed("ablate.py", *words, "--dry-run", cwd=swept)
    assert "12 arms" in dry.stdout  # three norms, two rates, two values of train.grad_clip


@pytest.mark.slow
def test_it_imports_no_torch_and_no_hydra(swept):
    heavy = {"torch", "model", "wandb", "hydra"}
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); sys.argv = ['', 'runs', '--out', 'other']; "
        f"import compare; compare.main(); bad = {heavy} & set(sys.modules); assert not bad, bad"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=swept, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr


def test_loose_runs_are_written_as_json(main, tmp_path):
    write_all(tmp_path / "runs", {LAYER: BASE, OTHER: RMS})
    status, out, _ = main("--json")
    data = json.loads(out)
    SCHEMA.validate_json(out)
    assert (status, data["study"], len(data["arms"])) == (0, None, 2)
    assert not (tmp_path / "report").exists()


def test_loose_runs_give_no_verdict_on_a_candidate(main, tmp_path):
    write_all(tmp_path / "runs", {LAYER: BASE, OTHER: RMS})
    status, out, _ = main("runs", "--candidate", "rmsnorm pre")
    assert status == 13
    assert out.startswith(
        "loose runs give no verdicts: a verdict needs a study: python ablate.py study=norms "
    )
    assert out.count("\n") == 1


def test_options_choose_what_is_compared(main, tmp_path):
    write_all(tmp_path / "runs", {LAYER: BASE, OTHER: RMS, "norm=none": BASE}, end={"act.rms/final": 3.0})
    options = ("--where", "norm=layernorm,rmsnorm", "--baseline", "norm=rmsnorm,placement=pre")
    status, out, _ = main("runs", *options, "--metric", "act.rms/final", "--out", "deep/er")
    assert status == 0
    assert "6 runs in 2 groups; lowest mean act.rms/final: rmsnorm pre, 3.0000." in out
    assert (tmp_path / "deep" / "er" / PAGE).exists()


def test_a_terminal_shows_the_first_forty_groups(main, tmp_path):
    for seed in range(43):
        write(tmp_path / "runs", LAYER, 2.0 + seed, edited=f"{seed:02}")
    _, out, _ = main("runs")
    assert out.count("layernorm pre code=") == 40 + 1  # and in the conclusion
    assert "3 more groups are on the page" in out
    assert (tmp_path / "report" / "table.md").read_text().count("| layernorm pre code=") == 43


REFUSALS = [
    (["nowhere"], "nowhere: no such folder; train some runs"),
    (["studies/norm"], "studies/norm: no such folder; did you mean studies/norms?"),
    (["runs", "--where", "norm=nope"], "--where: no run has norm=nope; choose from norm=layernorm,none"),
    (["runs", "--where", "placment=pre"], "--where: no run has the key placment; did you mean placement?"),
    (["empty"], "empty: no run here; train one first"),
    (["runs", "--baseline", "foo.bar=3"], "--baseline: no group has foo.bar=3; the groups differ in norm"),
    (["runs", "--out", "file"], "file"),
    (["runs", "studies/norms"], "studies/norms: is a study; name it alone, without other folders"),
    (["studies"], "studies: it has no runs, but studies; name one of them: studies/norms"),
]


@pytest.mark.parametrize(("arguments", "line"), REFUSALS)
def test_what_cannot_be_done_is_one_line(main, tmp_path, arguments, line):
    for norm in ("layernorm", "none"):
        write(tmp_path / "runs", f"norm={norm}")
    write_study(tmp_path / "studies" / "norms", tmp_path / "runs")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "empty").mkdir()
    status, out, err = main(*arguments)
    check_refused(subprocess.CompletedProcess([], status, out, err), f"error: {line}")
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("option", [["--json"], ["--candidate", "x"]])
def test_a_page_is_not_written_for_programs(main, option):
    status, _, err = main("runs", *option, "--out", "new")
    assert status == 2
    assert err.splitlines()[-1].startswith("compare.py: error: --out: with --json or --candidate no page")


def test_runs_of_another_length_are_compared_if_told(main, tmp_path):
    for steps in (10, 20):
        write(tmp_path / "runs", f"train.steps={steps}")
    assert main("runs")[2].startswith("error: train.steps: differs between these runs ")
    assert main("runs", "--mixed")[0] == 0


# ---------------------------------------------------------------------------------------------------
# Studies


def test_a_live_study_has_its_page_in_its_folder(main, tmp_path):
    write_study(tmp_path / "studies" / "norms", tmp_path / "runs")
    status, out, _ = main("studies/norms")
    assert status == 0
    assert out.startswith("Of 1 arm, 1 is worse than layernorm pre.")
    assert "page: studies/norms/index.html" in out
    assert (tmp_path / "studies" / "norms" / PAGE).exists()
    assert not (tmp_path / "report").exists()
    main("studies/norms", "--out", "here")
    assert (tmp_path / "here" / PAGE).exists()


def test_a_study_whose_runs_are_elsewhere_keeps_its_page(main, tmp_path, monkeypatch):
    folder = tmp_path / "studies" / "norms"
    write_study(folder, tmp_path / "runs")
    text = (folder / "study.json").read_text()
    (folder / "study.json").write_text(text.replace(str(tmp_path / "runs"), "runs"))
    assert main("studies/norms")[0] == 0
    before = (folder / PAGE).read_text()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    status, _, err = main("../studies/norms")
    assert (status, err.count("\n")) == (1, 1)
    assert "its runs are in runs, and there is no such folder here; start compare.py where" in err
    assert (folder / PAGE).read_text() == before


def test_a_study_is_read_by_programs(main, tmp_path):
    write_study(tmp_path / "studies" / "norms", tmp_path / "runs")
    _, out, _ = main("studies/norms", "--json")
    assert json.loads(out)["study"]["name"] == "norms"
    SCHEMA.validate_json(out)
    status, out, _ = main("studies/norms", "--candidate", "rmsnorm pre")
    assert status == 10
    assert out.startswith("rmsnorm pre: worse")


@pytest.mark.parametrize(
    "option",
    [["--where", "norm=none"], ["--baseline", "norm=none"], ["--metric", "val/loss"], ["--mixed"]],
)
def test_no_option_changes_a_study(main, tmp_path, option):
    write_study(tmp_path / "studies" / "norms", tmp_path / "runs")
    _, _, err = main("studies/norms", *option)
    assert err.startswith("error: studies/norms: a study is compared as declared; --metric --baseline")
    assert err.count("\n") == 1


# ---------------------------------------------------------------------------------------------------
# What is written


def test_the_page_follows_no_link(main, tmp_path):
    write(tmp_path / "runs", LAYER)
    (tmp_path / "report").mkdir()
    (tmp_path / "victim").write_text(OURS)
    (tmp_path / "report" / PAGE).symlink_to(tmp_path / "victim")
    assert main("runs")[0] == 0
    assert (tmp_path / "victim").read_text() == OURS
    assert not (tmp_path / "report" / PAGE).is_symlink()


def test_a_full_disk_leaves_the_old_page(main, tmp_path):
    write(tmp_path / "runs", LAYER)
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / PAGE).write_text(OURS)
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, hard))  # bytes of each file
    try:
        status, out, err = main("runs")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    check_refused(subprocess.CompletedProcess([], status, out, err), f"error: report/{PAGE}: File too large")
    assert (tmp_path / "report" / PAGE).read_text() == OURS
    assert [file.name for file in (tmp_path / "report").iterdir()] == [PAGE]
