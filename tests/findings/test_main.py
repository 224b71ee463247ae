"""findings as its user starts it: it lists, measures, keeps, goes on, and says what is wrong in a line."""

import json
import re
import signal
import time

import pytest

from tests.conftest import ROOT, TINY
from tests.helpers.programs import Program

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


def test_it_lists_every_finding_with_its_claim_before_anything_is_measured(command, tmp_path):
    done = command("findings/__main__.py")
    assert done.returncode == 0, done.stderr
    for file in (ROOT / "conf" / "finding").glob("*.yaml"):
        assert file.stem in done.stdout
    assert "E[x²] − E[x]²" in done.stdout
    assert not (tmp_path / "findings").exists()


def test_what_needs_no_training_is_measured_once_and_kept_and_drawn(command, tmp_path):
    done = command("findings/__main__.py", "cancellation")
    assert done.returncode == 0, done.stderr
    assert "PASS  cancellation: A variance" in done.stdout
    [kept] = tmp_path.glob("findings/results/cancellation-*.json")
    written = kept.stat().st_mtime_ns
    page = (tmp_path / "findings" / "index.html").read_text()
    assert '<h2 id="cancellation">cancellation: <span class="PASS">PASS</span></h2>' in page
    assert page.count("<svg") == 1
    assert "://" not in re.sub(r'xmlns(:xlink)?="[^"]*"', "", page)
    again = command("findings/__main__.py", "cancellation")
    assert kept.stat().st_mtime_ns == written
    assert again.stdout == done.stdout
    assert re.search(r"cancellation +A variance.* 1 +PASS", command("findings/__main__.py").stdout)


def test_one_that_trains_goes_on_where_it_was_and_shares_its_runs_with_its_control(command, mine, tmp_path):
    arguments = ("findings/__main__.py", "tiny", "--config-dir", str(tmp_path / "mine"))
    done = command(*arguments)
    assert done.returncode == 0, done.stderr
    assert "6 runs: 6 to do" in done.stdout
    assert "PASS  tiny: A norm keeps the stream." in done.stdout
    [kept] = tmp_path.glob("findings/results/tiny-*.json")
    assert json.loads(kept.read_text())["where"]["runs"] == 6
    kept.unlink()
    again = command(*arguments)
    assert "to do" not in again.stdout  # the runs are there
    assert "PASS  tiny" in again.stdout
    control = command(*arguments, "--control")
    assert "to do" not in control.stdout  # its arms are runs without a norm, which are there
    assert "control of tiny, which should not PASS: no norm in either arm" in control.stdout


def test_a_signal_ends_it_with_its_runs_saved_and_the_same_command_goes_on(mine, command, tmp_path):
    mine.write_text(mine.read_text().replace("train.steps: 6", "train.steps: 4000"))
    arguments = ("findings/__main__.py", "tiny", "--config-dir", str(tmp_path / "mine"))
    with Program(*arguments, cwd=tmp_path) as program:
        while not any("running" in f.read_text() for f in tmp_path.glob("findings/runs/*/*/status.json")):
            time.sleep(0.05)
        program.send_signal(signal.SIGTERM)
        _, said = program.communicate(timeout=60)
    assert program.returncode == 128 + signal.SIGTERM, said
    states = {json.loads(f.read_text())["state"] for f in tmp_path.glob("findings/runs/*/*/status.json")}
    assert states == {"interrupted"}
    assert not [*tmp_path.glob("findings/results/*")]
    assert not (tmp_path / "runs").exists()
    mine.write_text(mine.read_text().replace("train.steps: 4000", "train.steps: 6"))
    assert "PASS  tiny" in command(*arguments).stdout


def test_under_other_conditions_it_is_another_result(command, mine, tmp_path):
    arguments = ("findings/__main__.py", "--config-dir", str(tmp_path / "mine"), "tiny")
    done = command(*arguments, "train.steps=3", "--seeds", "3")
    assert done.returncode == 0, done.stderr
    config = next((tmp_path / "findings" / "runs").glob("*/*/config.yaml")).read_text()
    assert "steps: 3" in config
    listed = command("findings/__main__.py", "--config-dir", str(tmp_path / "mine")).stdout
    assert re.search(r"tiny +A norm keeps the stream. +1 +—", listed)  # that is of its own conditions


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("trains: false", "trains: perhaps"), "trains: invalid value 'perhaps'"),
        (("seeds: [0, 1, 2]", "seeds: [0]"), "seeds: invalid value [0]"),
        (("claim:", "clam:"), "tiny.yaml: claim: the key is missing"),
        (("read: ours", "read: ours\nreed: here"), "reed: unknown key; did you mean read?"),
        (("{above: 0, why", "{why"), "neither this nor below is given"),
        (("arms: {with: {norm: none}}", "arms: {wit: {norm: none}}"), "there is no arm 'wit'"),
        (("minutes: 1", "minutes: 30"), "minutes: 30"),
        (("at_init.gradient", "at_init.gradent"), "cannot be imported"),
        (("norm: layernorm", "norm: layrnorm"), "layrnorm"),
        (("norm: layernorm", "nrm: layernorm"), "did you mean norm?"),
        (("claim: A", "claim: [A"), "tiny.yaml"),
        (("first, with:", "first, wth:"), "at_init.gradient_profile gives no 'last / first, wth'"),
    ],
)
def test_a_mistake_in_a_finding_is_one_line_that_says_where(command, mine, tmp_path, change, said):
    text = mine.read_text().replace("trains: true", "trains: false")
    text = text.replace("losses.final_losses", "at_init.gradient_profile").replace(
        "loss of with", "last / first, with"
    )
    assert change[0] in text
    mine.write_text(text.replace(*change))
    done = command("findings/__main__.py", "tiny", "--config-dir", str(tmp_path / "mine"))
    assert done.returncode == 1
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("warmup",), "there is no finding 'warmup'; did you mean warm_up?"),
        (("warm_up", "--seeds", "2"), "--seeds: 2 give no interval"),
        (("--control",), "of which finding?"),
        (("--under", "0.01"), "--under: none of them takes 0.01 minutes or less"),
        (("gradient_slopes", "model.n_layer=4"), "model.n_layer: is what its models differ in"),
        (("warm_up", "placement=peri"), "placement: is what its models differ in"),
        (("warm_up", "seed=7"), "seed: is what its models differ in"),
        (("model.n_layer=2",), "of which finding?"),
        (("warm_up", "model.n_layr=2"), "did you mean model.n_layer?"),
        (("--config-dir", "nowhere"), "nowhere"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line(command, arguments, said):
    done = command("findings/__main__.py", *arguments)
    assert done.returncode == 1
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
