"""python -m findings as its user starts it: it lists, measures, keeps, resumes, and reports errors."""

import json
import re
import signal

import pytest

from tests.conftest import ROOT, TINY
from tests.helpers import programs
from tests.helpers.contract import check_one_line, error_lines
from tests.helpers.programs import PATIENCE, Program

PROGRAM = "findings/__main__.py"
OUT = "runs/findings"

MINE = """
claim: A norm keeps the stream.
source: nobody
numbers: none
read: ours
size: tiny
minutes: 1
trains: true
all: {data: text, data.path: TEXT, SIZES}
arms:
  with: {norm: layernorm}
  without: {norm: none}
seeds: [0, 1, 2]
measure: findings.measures.losses.final_losses
expected:
  loss of with: {above: 0, why: "it is a loss"}
control:
  what: no norm in either arm
  arms: {with: {norm: none}}
picture: {x: step, y: val/loss}
remark: It is tiny.
"""


@pytest.fixture
def mine(tmp_path, text_file):
    """A folder with a finding whose six runs take a second each."""
    sizes = ", ".join(f"{key}: {value}" for key, value in (o.split("=") for o in TINY))
    folder = tmp_path / "mine" / "finding"
    folder.mkdir(parents=True)
    file = folder / "tiny.yaml"
    file.write_text(MINE.replace("TEXT", str(text_file)).replace("SIZES", sizes))
    return file


@pytest.fixture
def measured(tmp_path, mine):
    """A function that runs python -m findings with our finding and returns stdout and stderr."""

    def run(*arguments: str, status: int = 0) -> str:
        config_dir = ("--config-dir", str(tmp_path / "mine"))
        done = programs.run(PROGRAM, *arguments, *config_dir, cwd=tmp_path)
        assert done.returncode == status, done.stderr
        return done.stdout + done.stderr

    return run


@pytest.mark.slow
def test_it_lists_every_finding_before_anything_is_measured(succeed, tmp_path):
    done = succeed(PROGRAM)
    for file in (ROOT / "conf" / "finding").glob("*.yaml"):
        assert file.stem in done.stdout
    assert "E[x²] − E[x]²" in done.stdout
    assert "—" not in done.stdout  # each has a verdict
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_without_training_a_finding_is_measured_once_and_kept_and_drawn(command, succeed, tmp_path):
    done = succeed(PROGRAM, "cancellation")
    assert "PASS  cancellation: A variance" in done.stdout
    [result_file] = tmp_path.glob(f"{OUT}/results/cancellation-*.json")
    written_at = result_file.stat().st_mtime_ns
    page = (tmp_path / OUT / "findings.md").read_text()
    assert "**PASS** — A variance computed" in page
    assert "](pictures/cancellation.svg)" in page
    assert (tmp_path / OUT / "pictures/cancellation.svg").read_text().startswith("<svg")
    second = command(PROGRAM, "cancellation")
    done.stdout = done.stdout.replace("preparing shakespeare with the tokenizer char\n", "")
    assert result_file.stat().st_mtime_ns == written_at
    assert second.stdout == done.stdout
    assert re.search(r"cancellation +A variance.* 1 +PASS", command(PROGRAM).stdout)


@pytest.mark.long
def test_a_finding_that_trains_resumes_and_shares_its_runs_with_its_control(measured, tmp_path):
    printed = measured("tiny")
    assert "6 runs: 6 to do" in printed
    assert not [folder for folder in tmp_path.iterdir() if '"' in folder.name]  # of the sweep
    assert "PASS  tiny: A norm keeps the stream." in printed
    [result_file] = tmp_path.glob(f"{OUT}/results/tiny-*.json")
    assert json.loads(result_file.read_text())["where"]["runs"] == 6
    result_file.unlink()
    second = measured("tiny")
    assert "to do" not in second  # the runs exist
    assert "PASS  tiny" in second
    control = measured("tiny", "--control")
    assert "to do" not in control  # its arms are runs without a norm, which exist
    assert "control of tiny, which should not PASS: no norm in either arm" in control


@pytest.mark.slow
def test_a_signal_ends_the_program_with_its_runs_saved(mine, tmp_path):
    mine.write_text(mine.read_text().replace("train.steps: 6", "train.steps: 4000"))
    with Program(PROGRAM, "tiny", "--config-dir", str(tmp_path / "mine"), cwd=tmp_path) as program:
        program.until(
            lambda: any("running" in f.read_text() for f in tmp_path.glob(f"{OUT}/runs/*/*/status.json"))
        )
        program.send_signal(signal.SIGTERM)
        _, errors = program.communicate(timeout=PATIENCE)
    assert program.returncode == 128 + signal.SIGTERM, errors
    states = {json.loads(f.read_text())["state"] for f in tmp_path.glob(f"{OUT}/runs/*/*/status.json")}
    assert states == {"interrupted"}
    assert not [*tmp_path.glob(f"{OUT}/results/*")]
    assert [folder.name for folder in (tmp_path / "runs").iterdir()] == ["findings"]


@pytest.mark.long
def test_under_other_conditions_a_finding_has_another_result(measured, tmp_path):
    measured("tiny", "train.steps=3", "--seeds", "3")
    config = next((tmp_path / OUT / "runs").glob("*/*/config.yaml")).read_text()
    assert "steps: 3" in config
    assert re.search(r"tiny +A norm keeps the stream. +1 +—", measured())  # under its own conditions


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "error"),
    [
        (("seeds: [0, 1, 2]", "seeds: [0]"), "seeds: invalid value [0]"),
        (("claim:", "clam:"), "tiny.yaml: claim: the key is missing"),
        (("read: ours", "read: ours\nreed: here"), "reed: unknown key; did you mean read?"),
        (("{above: 0, why", "{why"), "neither above nor below is given"),
        (("arms: {with: {norm: none}}", "arms: {wit: {norm: none}}"), "no arm is called 'wit'"),
        (("at_init.gradient", "at_init.gradent"), "cannot be imported"),
        (("norm: layernorm", "nrm: layernorm"), "did you mean norm?"),
        (("claim: A", "claim: [A"), "tiny.yaml"),
        (("first, with:", "first, wth:"), "at_init.gradient_profile returns no 'last / first, wth'"),
    ],
)
def test_an_error_in_a_finding_is_one_line_with_its_place(measured, mine, change, error):
    text = mine.read_text().replace("trains: true", "trains: false")
    text = text.replace("losses.final_losses", "at_init.gradient_profile")
    text = text.replace("loss of with", "last / first, with")
    assert change[0] in text
    mine.write_text(text.replace(*change))
    [line] = error_lines(measured("tiny", status=1))
    assert error in line


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("warmup",), "no finding is called 'warmup'; did you mean warm_up?"),
        (("warm_up", "--seeds", "2"), "--seeds: a verdict needs at least 3, not 2"),
        (("--control",), "no finding is named"),
        (("--under", "0.01"), "--under: no finding takes 0.01 minutes or less"),
        (("warm_up", "--under", "9"), "--under: cannot be combined with names"),
        (("gradient_slopes", "model.n_layer=4"), "model.n_layer: the finding varies this key"),
        (("warm_up", "seed=7"), "seed: the finding varies this key"),
        (("warm_up", "model.n_layr=2"), "did you mean model.n_layer?"),
        (("--config-dir", "nowhere"), "nowhere"),
    ],
)
def test_an_error_on_the_command_line_is_one_line(command, arguments, error):
    check_one_line(command(PROGRAM, *arguments), error)
