"""The JSON of a comparison has a documented form; the exit status says the verdict on one arm."""

import json

import pytest

from comparison.groups import ComparisonError
from comparison.machine import SCHEMA, ExitStatus, comparison, status_of
from comparison.report import build_report
from tests.comparison.runs import role, several
from tests.conftest import ROOT
from tests.helpers import programs
from tests.helpers.run_folders import ARMS, made

ONE_RATE = (
    "All groups have one learning rate, 0.002: "
    "at each group's own best rate the order may differ (confounded)."
)
EXIT_STATUS = {
    "rmsnorm": ExitStatus.BETTER,
    "dyt": ExitStatus.NOT_BETTER,
    "derf": ExitStatus.EQUIVALENT,
    "groupnorm": ExitStatus.CANNOT_TELL,
    "none": ExitStatus.NOT_BETTER,
    "batchnorm": ExitStatus.UNFIT,
}


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return build_report(several(tmp_path_factory.mktemp("runs"), ARMS))


def test_the_json_has_the_form_that_is_documented(report):
    data = json.loads(json.dumps(comparison(report), allow_nan=False))
    SCHEMA.validate_python(data)
    assert json.loads((ROOT / "docs" / "comparison.schema.json").read_text()) == SCHEMA.json_schema()
    arms = {each["keys"]["norm"]: each for each in data["arms"]}
    assert arms.keys() == {norm.removeprefix("norm=") for norm in ARMS}
    assert arms["rmsnorm"]["difference"]["mean"] == pytest.approx(-0.0996)
    assert arms["rmsnorm"]["difference"]["seeds"] == [0, 1, 2, 3, 4]
    assert arms["rmsnorm"]["baseline"] == "layernorm"
    assert arms["none"]["diverged"] == [0, 1]
    assert arms["batchnorm"]["leaks"]
    assert arms["groupnorm"]["outcome"] == "open"
    assert arms["groupnorm"]["command"].startswith("python train.py -m ")


def test_a_number_that_is_missing_is_null(tmp_path):
    data = comparison(build_report(several(tmp_path, {"norm=layernorm": [2.0], "norm=none": [None]})))
    json.dumps(data, allow_nan=False)
    by_norm = {each["keys"]["norm"]: each for each in data["arms"]}
    assert by_norm["layernorm"]["mean"] == {"mean": 2.0, "low": None, "high": None, "seeds": [0]}
    assert by_norm["none"]["mean"] is None


def test_an_arm_without_a_difference_is_said_to_have_none(report):
    assert status_of(report, "norm=none")[1] == "none: diverged 2 of 5"


@pytest.mark.parametrize("norm", EXIT_STATUS)
def test_the_exit_status_says_the_verdict(report, norm):
    status, line = status_of(report, f"norm={norm}")
    assert status == EXIT_STATUS[norm], line
    assert line.startswith(f"{norm}: ")


@pytest.mark.parametrize("values", ["norm=layernorm", "norm=nope", "norm=*norm"])
def test_a_candidate_is_one_arm_beside_the_baseline(report, values):
    with pytest.raises(
        ComparisonError, match="--candidate: norm=.* is not one arm beside the baseline; name"
    ):
        status_of(report, values)


def test_a_candidate_may_be_named_by_what_all_runs_have_in_common(report):
    assert status_of(report, "norm=rmsnorm,placement=pre") == status_of(report, "norm=rmsnorm")
    with pytest.raises(ComparisonError, match="not one arm"):
        status_of(report, "norm=rmsnorm,placement=post")


def test_a_candidate_is_named_by_its_title_or_without_what_it_lacks(tmp_path):
    arms = ("norm=layernorm", "norm=rmsnorm", "norm=rmsnorm model.qk_norm=rmsnorm")
    report = build_report(several(tmp_path, {arm: [2.0, 2.1, 2.2] for arm in arms}))
    plain, with_qk = report.rows[1:]
    assert (plain.title, with_qk.title) == ("rmsnorm", "rmsnorm qk_norm=rmsnorm")
    names_of = [(plain, ["rmsnorm", "norm=rmsnorm"]), (with_qk, [with_qk.title, "model.qk_norm=rmsnorm"])]
    for row, names in names_of:
        for name in names:
            assert status_of(report, name)[1].startswith(f"{row.title}: ")
    depths = {f"norm=rmsnorm model.n_layer={n}": [2.0, 2.1, 2.2] for n in (1, 12)}
    several_depths = build_report(
        several(tmp_path / "d", {"norm=layernorm model.n_layer=1": [2.0, 2.1, 2.2]} | depths)
    )
    with pytest.raises(ComparisonError, match="is not one arm"):  # n_layer=1 is no part of n_layer=12
        status_of(several_depths, "norm=rmsnorm")
    with pytest.raises(ComparisonError, match='name one of "rmsnorm", "rmsnorm qk_norm=rmsnorm"'):
        status_of(report, "rmsnom")


def test_a_mean_over_arms_at_several_rates_has_no_rate(tmp_path):
    rates = {"pre": "1e-2", "post": "3e-3"}
    arms = {
        f"norm={norm} placement={placement} optim.learning_rate={rate}": [2.0, 2.1, 2.2]
        for norm in ("layernorm", "none")
        for placement, rate in rates.items()
    }
    tuned = [role("compared", "both", ("optim.learning_rate",))]
    runs = several(tmp_path, arms, first=10, roles=tuned)
    each = comparison(build_report(runs))["arms"]
    assert {arm["learning_rate"] for arm in each} == {1e-2, 3e-3}
    data = comparison(build_report(runs, over=["placement"]))
    assert [arm["learning_rate"] for arm in data["arms"]] == [None, None]
    assert "Each number is a mean over placement=post,pre." in data["summary"]


def test_programs_get_json_and_status_from_compare(tmp_path):
    for norm in ("layernorm", "rmsnorm"):
        for seed, loss in enumerate(ARMS[f"norm={norm}"]):
            made(tmp_path / "runs", f"norm={norm}", f"seed={seed}", final=loss)
    done = programs.succeed("compare.py", "--json", cwd=tmp_path)
    SCHEMA.validate_json(done.stdout)
    assert not (tmp_path / "report").exists()
    candidate = programs.run("compare.py", "--candidate", "norm=rmsnorm", cwd=tmp_path)
    assert (candidate.returncode, candidate.stdout) == (0, "rmsnorm: better (-0.0996)\n")
    assert candidate.stderr.endswith(f"{ONE_RATE}\n")
    worse = programs.run(
        *("compare.py", "--baseline", "norm=rmsnorm", "--candidate", "norm=layernorm"), cwd=tmp_path
    )
    assert worse.returncode == ExitStatus.NOT_BETTER
    damaged = next((tmp_path / "runs").iterdir())
    (damaged / "config.yaml").write_text("[")
    fewer = programs.run("compare.py", "--candidate", "norm=rmsnorm", cwd=tmp_path)
    assert str(damaged.relative_to(tmp_path)) in fewer.stderr
    made(tmp_path / "runs", "norm=dyt", "train.steps=7")
    unlike = programs.run("compare.py", "--candidate", "norm=rmsnorm", cwd=tmp_path)
    assert (unlike.returncode, unlike.stderr) == (ExitStatus.UNFIT, "")
    assert unlike.stdout.startswith("these runs cannot be compared, as they differ in tokens trained on")
    assert programs.run("compare.py", "--baseline", "norm", cwd=tmp_path).returncode == 2
    assert programs.run("compare.py", "--candidate", "", cwd=tmp_path).returncode != ExitStatus.BETTER
    both = programs.run("compare.py", "--json", "--candidate", "norm=layernorm", cwd=tmp_path)
    assert (both.returncode, both.stdout) == (2, "")
