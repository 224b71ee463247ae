"""A norm outside the project, as docs/own-norm.md has it: a class and a YAML, and no edit of the project."""

import json
import re

import pytest

from tests.conftest import LETTERS, ROOT, TINY
from tests.helpers import programs
from tests.helpers.contract import check_refused
from tests.helpers.runs import metric_rows

SECTION = (ROOT / "docs/own-norm.md").read_text(encoding="utf-8")
NAME, DOTTED = "l1", "mynorms.L1Norm"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder that holds what it says, a text, and the runs of an ablation of it."""
    home = tmp_path_factory.mktemp("home")
    (home / "mine" / "norm").mkdir(parents=True)
    [code, *_] = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)
    [options] = re.findall(r"```yaml\n(.*?)```", SECTION, re.DOTALL)
    assert f"_target_: {DOTTED}" in options
    (home / "mine" / "mynorms.py").write_text(code)
    (home / "mine" / "norm" / f"{NAME}.yaml").write_text(options)
    (home / "text.txt").write_text(LETTERS)
    started(home, "train.py", "-m", f"norm=layernorm,{NAME}", "seed=0,1", "stats=all", *usual(home))
    return home


def usual(home) -> tuple[str, ...]:
    return (*TINY, "data=text", f"data.path={home}/text.txt", "--config-dir", "mine")


def started(home, program: str, *arguments: str):
    return programs.succeed(program, *arguments, cwd=home, PYTHONPATH="mine")


def test_it_trains_and_is_certified_and_its_statistics_are_taken(home):
    folders = sorted((home / "runs").glob(f"{NAME}-pre-s*"))
    assert len(folders) == 2
    for folder in folders:
        assert json.loads((folder / "status.json").read_text())["state"] == "finished"
        certificate = json.loads((folder / "certificate.json").read_text())
        for answer in (certificate["start"], certificate["end"]):
            assert (answer["causal"], answer["independent_rows"]) == (True, True)
        first = metric_rows(folder)[0]
        assert first["norm.gain/01.mlp.pre"] == 1
        assert {"act.rms/01.mlp.pre.in", "act.rms/01.mlp.pre.out", "leak.future/train"} <= first.keys()


@pytest.mark.slow
def test_it_is_a_row_of_the_ablation_with_a_verdict(home):
    done = started(home, "compare.py", "runs")
    [row] = [line for line in done.stdout.splitlines() if line.strip().startswith(NAME)]
    assert any(verdict in row for verdict in ("better", "worse", "not distinguishable"))


@pytest.mark.slow
def test_its_text_needs_trust(home):
    [folder, *_] = sorted((home / "runs").glob(f"{NAME}-pre-s*"))
    refused = programs.run("sample.py", f"run={folder}", "max_new_tokens=2", cwd=home, PYTHONPATH="mine")
    check_refused(refused, "add trust=mynorms")
    trusted = started(home, "sample.py", f"run={folder}", "max_new_tokens=5", "trust=mynorms", "prompt=Now")
    assert trusted.stdout.startswith("Now")


def test_it_stands_at_other_sites_and_in_every_placement(home):
    elsewhere = ("model.qk_norm=l1", "model.embedding_norm=l1", "placement=peri", "train.steps=2")
    started(home, "train.py", *elsewhere, *usual(home))
    [folder] = (home / "runs").glob("layernorm-peri-s0-*")
    assert f"_target_: {DOTTED}" in (folder / "config.yaml").read_text()
    unknown = programs.run("train.py", "model.qk_norm=l2", *usual(home), cwd=home, PYTHONPATH="mine")
    line = "model.qk_norm: there is no norm 'l2'; choose one of same, batchnorm, "
    check_refused(unknown, line, f" {NAME}, ")


@pytest.mark.slow
def test_an_edited_norm_is_a_new_run(home):
    file = home / "mine" / "mynorms.py"
    before = file.read_text()
    again = started(home, "train.py", f"norm={NAME}", "stats=all", *usual(home))
    assert "nothing left to do" in again.stdout
    file.write_text(before.replace("self.eps) *", "self.eps) * 1.0 *"))
    try:
        assert before != file.read_text()
        edited = started(home, "train.py", f"norm={NAME}", "stats=all", *usual(home))
        assert "nothing left to do" not in edited.stdout
    finally:
        file.write_text(before)
