"""compare.py as a user sees it: a table of real runs, refusals in one line, and two runs side by side."""

import re
import signal
import subprocess
import sys

import pytest

from tests.conftest import ROOT, TINY
from tests.helpers import programs
from tests.helpers.contract import check_refused
from tests.helpers.programs import PATIENCE, Program
from tests.helpers.run_folders import made


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
    (folder / "runs" / "foreign").mkdir()
    with next(folder.glob("runs/batchnorm-*/metrics.jsonl")).open("a") as stream:
        stream.write('{"step": 10')
    return folder


def compare(folder, *arguments: str):
    return programs.run("compare.py", *arguments, cwd=folder)


def test_real_runs_become_a_table_and_a_page(swept):
    done = programs.succeed("compare.py", cwd=swept)
    printed = " ".join(done.stdout.split())
    assert "passed over: runs/foreign: not a run: it has no metrics.jsonl" in printed
    assert re.search(r"line \d+ is not a row and is passed over", printed)
    table = {line.split()[0]: line for line in done.stdout.splitlines() if line.split()}
    assert "baseline" in table["layernorm"]
    assert "LEAKS" in table["batchnorm"]
    assert "no baseline with the same other settings" in table["none"]
    assert "1 of 1" in table["none"]
    assert "report/index.html: open it in a browser" in done.stdout
    assert (swept / "report" / "index.html").stat().st_size < 2e6


@pytest.mark.slow
def test_it_imports_no_torch_and_nothing_of_training(swept):
    heavy = {"torch", "training", "model", "wandb", "hydra", "scipy.stats"}
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); sys.argv = ['', 'runs', '--out', 'other']; "
        f"import compare; compare.main(); bad = {heavy} & set(sys.modules); assert not bad, bad"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=swept, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr


REFUSALS = [
    (["nowhere"], "nowhere: no such folder; train some runs"),
    (["runs", "--where", "norm=nope"], "--where: no run has norm=nope; available: norm=layernorm, none"),
    (["runs", "--where", "placment=pre"], "--where: no run has the key placment; did you mean placement?"),
    (["empty"], "empty: no run here has ended; empty: not a run: it has no metrics.jsonl"),
    (["runs", "--where", "norm"], "--where: 'norm' has no value"),
    (["runs", "--baseline", "foo.bar=3"], "--baseline: no group has foo.bar=3; the groups differ in norm"),
    (["runs", "--over", "optim.learning_rate"], "--over: each group is compared at its own best rate"),
    (["runs", "--out", "file"], "file"),
    (["runs", "--out", "mine"], "--out: mine has other files, such as notes.txt; name a new folder"),
    (
        ["runs", "--out", "site"],
        "--out: site has files that are not of a report, or of one by an earlier version; remove",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "line"), REFUSALS)
def test_what_cannot_be_done_is_one_line(tmp_path, arguments, line):
    for norm in ("layernorm", "none"):
        made(tmp_path / "runs", f"norm={norm}")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "empty").mkdir()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "index.html").write_text("mine")
    check_refused(compare(tmp_path, *arguments), f"error: {line}")
    assert (tmp_path / "site" / "index.html").read_text() == "mine"
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--every", "3"], "--every: is the period of --watch; give both"),
        (
            ["--json", "--out", "new"],
            "--out: only a comparison without --json, --candidate and --watch writes",
        ),
    ],
)
def test_options_that_do_not_go_together_are_refused(tmp_path, arguments, line):
    done = compare(tmp_path, *arguments)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(f"compare.py: error: {line}")


@pytest.mark.slow
def test_what_differs_is_compared_all_the_same_if_told(tmp_path):
    for steps in (10, 20):
        made(tmp_path / "runs", f"train.steps={steps}")
    assert compare(tmp_path).stderr.startswith(
        "error: these runs cannot be compared, as they differ in tokens trained on: "
    )
    assert compare(tmp_path, "--mixed").returncode == 0


def test_two_runs_stand_side_by_side(tmp_path):
    same = {
        step: {"act.rms/00.attn": 1.0, "act.rms/00.mlp": 1.0, "grad.rms/00.mlp": 1.0} for step in (0, 2, 4)
    }
    other = same | {4: {"act.rms/00.attn": 1.001, "act.rms/00.mlp": 1.2, "grad.rms/00.mlp": 7.0}}
    a, b = made(tmp_path, "norm=none", curve=same), made(tmp_path, "seed=1", final=2.25, curve=other)
    done = programs.succeed("compare.py", str(a), str(b), cwd=tmp_path)
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert "norm none layernorm" in lines
    assert "seed 0 1" in lines
    assert "where statistics differ at all: from step 4, first act.rms/00.attn: 1 and 1.001" in lines
    assert "where statistics differ by more than 1%: from step 4, first act.rms/00.mlp: 1 and 1.2" in lines
    assert "val/full_loss: 2.0000 and 2.2500, differing by +0.2500" in lines


def test_two_runs_are_a_table_if_an_option_of_the_table_is_given(tmp_path):
    made(tmp_path / "runs", "norm=none")
    made(tmp_path / "runs", "norm=layernorm")
    done = programs.succeed(
        "compare.py", *map(str, (tmp_path / "runs").iterdir()), "--metric", "val/loss", cwd=tmp_path
    )
    assert "verdict" in done.stdout
    assert "val/loss" in done.stdout


def test_watching_begins_before_there_are_runs_and_goes_on_until_it_is_interrupted(tmp_path):
    with Program("compare.py", "--watch", "--every", "0.1", cwd=tmp_path) as program:
        program.until(lambda: "no such folder" in program.printed())
        made(tmp_path / "runs", "norm=none")
        program.until(lambda: "baseline" in program.printed())
        assert program.poll() is None
        program.send_signal(signal.SIGINT)
        assert program.wait(30) == 130
    assert not (tmp_path / "report").exists()
