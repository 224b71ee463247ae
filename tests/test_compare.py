"""compare.py as a user sees it: tables of real runs and of studies, a page, refusals in one line."""

import json
import re
import resource
import subprocess
import sys

import pytest

import compare
from study import page
from study.table import SCHEMA
from tests.conftest import ROOT, TINY
from tests.helpers import programs
from tests.helpers.contract import check_refused
from tests.helpers.programs import PATIENCE
from tests.helpers.studies import BASE, WORSE, write_study
from tests.study.test_loose import TWO, write, write_all

STUDY = "studies/norms"


@pytest.fixture
def main(tmp_path, monkeypatch, capsys):
    """Return a function that runs compare.py here, in an empty folder: (exit status, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(page, "vega", lambda: "")  # takes seconds

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["compare.py", *map(str, arguments)])
        try:
            status = compare.main() or 0
        except SystemExit as end:
            status = end.code
        return status, *capsys.readouterr()

    return run


@pytest.fixture
def study(main, tmp_path):
    """The folder of a study with one arm, which is worse."""
    write_study(tmp_path / STUDY, WORSE)
    return tmp_path / STUDY


@pytest.mark.slow
def test_real_runs_become_a_table_a_page_and_the_advice_of_a_study_without_torch(tmp_path, text_file):
    base = ("-m", *TINY, "data=text", "data.path=text.txt", "stats.every=1")
    programs.succeed("train.py", *base, "norm=layernorm,batchnorm", "seed=0,1", cwd=tmp_path)
    diverges = ("norm=none", "optim.learning_rate=1e30", "train.grad_clip=0")
    programs.succeed("train.py", *base, *diverges, cwd=tmp_path)
    with next(tmp_path.glob("runs/batchnorm-*/metrics.jsonl")).open("a") as stream:
        stream.write('{"step": 10')  # as a kill leaves it
    heavy = {"torch", "model", "wandb", "hydra"}
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); sys.argv = ['']; import compare; compare.main(); "
        f"bad = {heavy} & set(sys.modules); assert not bad, bad"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("5 runs in 3 groups; lowest mean validation loss: ")
    table = {line.split()[0]: line for line in done.stdout.splitlines() if line.split()}
    assert "baseline" in table["layernorm"]
    assert re.search(r"\[.*LEAKS in training", table["batchnorm"])
    assert "1 of 1 diverged" in table["none"]
    assert "LEAKS in training" in (tmp_path / "report/index.html").read_text()
    words = done.stdout.split("python ablate.py ")[1].splitlines()[0].split()
    dry = programs.succeed("ablate.py", *words, "--dry-run", cwd=tmp_path)
    assert "12 arms" in dry.stdout  # three norms, two rates, two values of train.grad_clip


def test_options_choose_which_loose_runs_are_compared_and_in_what(main, tmp_path):
    write_all(tmp_path / "runs", TWO, end={"act.rms/final": 3.0})
    write(tmp_path / "runs", "norm=none train.steps=20")
    assert main("runs")[2].startswith("error: train.steps: differs between these runs ")
    assert main("runs", "--mixed")[0] == 0
    options = ("--where", "norm=layernorm,rmsnorm", "--baseline", "norm=rmsnorm,placement=pre")
    status, out, _ = main("runs", *options, "--metric", "act.rms/final", "--out", "deep/er")
    assert status == 0
    assert "6 runs in 2 groups; lowest mean act.rms/final: rmsnorm pre, 3.0000." in out
    assert (tmp_path / "deep/er/index.html").exists()


def test_programs_read_loose_runs_which_give_no_verdict_on_a_candidate(main, tmp_path):
    write_all(tmp_path / "runs", TWO)
    status, out, _ = main("--json")
    SCHEMA.validate_json(out)
    assert (status, json.loads(out)["study"], len(json.loads(out)["arms"])) == (0, None, 2)
    status, out, _ = main("runs", "--candidate", "rmsnorm pre")
    assert (status, out.count("\n"), out[:28]) == (13, 1, "loose runs give no verdicts;")
    assert not (tmp_path / "report").exists()
    status, _, err = main("runs", "--json", "--out", "new")  # a page is not written for programs
    assert (status, "--out: " in err.splitlines()[-1]) == (2, True)


def test_a_terminal_shows_the_first_forty_groups(main, tmp_path):
    for seed in range(43):
        write(tmp_path / "runs", BASE, 2.0 + seed, edited=f"{seed:02}")
    _, out, _ = main("runs")
    assert out.count("layernorm pre code=") == 40 + 1  # and in the conclusion
    assert "3 more groups are on the page" in out
    assert (tmp_path / "report" / "table.md").read_text().count("| layernorm pre code=") == 43


OF_A_STUDY = f"{STUDY}: the comparisons of a study are fixed"
REFUSALS = {
    "nowhere": "nowhere: no such folder",
    "studies/norm": "studies/norm: no such folder; did you mean studies/norms?",
    "runs --where norm=nope": "--where: no run has norm=nope",
    "runs --baseline foo.bar=3": "--baseline: no group has foo.bar=3",
    "runs --out file": "file",
    f"runs {STUDY}": f"{STUDY}: is a study; name it alone",
    "studies": f"studies: it has studies, but no loose runs; name one of the studies: {STUDY}",
    f"{STUDY} --where norm=none": OF_A_STUDY,
    f"{STUDY} --metric val/loss": OF_A_STUDY,
}


def test_what_cannot_be_done_is_one_line(main, study, tmp_path):
    for norm in ("layernorm", "none"):
        write(tmp_path / "runs", f"norm={norm}")
    (tmp_path / "file").write_text("mine")
    for words, line in REFUSALS.items():
        check_refused(subprocess.CompletedProcess([], *main(*words.split())), f"error: {line}")
    assert (tmp_path / "file").read_text() == "mine"


def test_a_live_study_has_its_page_in_its_folder_and_its_verdicts_for_programs(main, study, tmp_path):
    status, out, _ = main(STUDY)
    assert status == 0
    assert out.startswith("Of 1 arm, 1 is worse than layernorm pre.")
    assert f"page: {STUDY}/index.html" in out
    assert not (tmp_path / "report").exists()
    _, out, _ = main(STUDY, "--json")
    SCHEMA.validate_json(out)
    assert json.loads(out)["study"]["name"] == "norms"
    status, out, _ = main(STUDY, "--candidate", "rmsnorm pre")
    assert (status, out.startswith("rmsnorm pre: worse")) == (10, True)


def test_a_study_whose_runs_are_elsewhere_and_a_full_disk_leave_the_old_page(main, study, monkeypatch):
    (study / "index.html").write_text(page.OURS)
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, hard))  # bytes of each file
    try:
        done = subprocess.CompletedProcess([], *main(STUDY))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    check_refused(done, f"error: {STUDY}/index.html: File too large")
    assert (study / "index.html").read_text() == page.OURS
    assert len([*study.iterdir()]) == 3
    monkeypatch.chdir(study)
    done = subprocess.CompletedProcess([], *main("."))
    check_refused(done, "its runs are in runs, which does not exist here; start compare.py where")
    assert (study / "index.html").read_text() == page.OURS
