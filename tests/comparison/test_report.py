"""What a report says follows from the runs: verdicts, refusals, warnings, and the command that would settle
it."""

import pytest

from comparison.cells import cells, markdown
from comparison.groups import ComparisonError
from comparison.report import reported
from tests.comparison.made import several

THREE = {
    "norm=layernorm": [2.00, 2.05, 1.95],
    "norm=batchnorm": [2.30, 2.351, 2.249],
    "norm=none": [2.00, 2.10, 1.92],
}


def verdicts(report):
    return {row.title: row.verdict for row in report.rows}


def test_verdicts_are_of_differences_paired_by_seed(tmp_path):
    """Unpaired, 2.30 ± 0.13 against 2.00 ± 0.12 would be told apart less surely."""
    report = reported(several(tmp_path, THREE))
    assert verdicts(report) == {
        "layernorm": "baseline",
        "batchnorm": "worse",
        "none": "not distinguishable at 3 seeds",
    }
    by_title = {row.title: row for row in report.rows}
    assert by_title["batchnorm"].difference.mean == pytest.approx(0.3)
    assert by_title["batchnorm"].difference.half < 0.01
    assert by_title["none"].needed[0] > 3
    assert report.rows[0].title == "layernorm"  # the baseline is first


def test_the_command_for_more_seeds_makes_those_that_are_missing(tmp_path):
    runs = several(tmp_path, THREE | {"norm=none train.threads=1 tuned=[]": []})
    row = {row.title: row for row in reported(runs).rows}["none"]
    first, second = row.command.split(" && ")
    assert first.startswith("python train.py -m norm=none seed=3,4,5")
    assert second.startswith("python train.py -m norm=layernorm seed=3,4,5")


def test_one_seed_is_no_verdict_and_asks_for_three(tmp_path):
    report = reported(several(tmp_path, {"norm=layernorm": [2.0], "norm=none": [2.5]}))
    assert verdicts(report)["none"] == "no verdict: 1 common seed"
    assert (
        report.rows[1].command
        == "python train.py -m norm=none seed=1,2 && python train.py -m norm=layernorm seed=1,2"
    )
    assert report.rows[1].difference.mean == 0.5


def test_seeds_that_only_one_has_do_not_count_and_it_is_said(tmp_path):
    runs = several(tmp_path, {"norm=layernorm": [2.0, 2.1], "norm=none": [2.5, 2.6, 2.7, 2.8]})
    report = reported(runs)
    assert report.rows[1].difference.n == 2
    assert "none: only 2 of its 4 seeds are the baseline's, too" in report.warnings


def test_any_diverged_seed_and_there_is_no_mean(tmp_path):
    report = reported(several(tmp_path, {"norm=layernorm": [2.0, 2.1], "norm=none": [2.0, None]}))
    assert verdicts(report)["none"] == "diverged 1 of 2"
    [line] = [line for line in cells(report) if line["norm"] == "none"]
    assert (line["val/full_loss"], line["difference"], line["diverged"]) == ("—", "—", "1 of 2")
    report = reported(several(tmp_path / "b", {"norm=layernorm": [None, 2.1], "norm=none": [2.0, 2.1]}))
    assert verdicts(report)["none"] == "the baseline diverged"


def test_the_baseline_may_be_another_and_all_else_is_equal(tmp_path):
    losses = {
        f"norm={n} model.n_layer={d}": [2.0 + d / 10, 2.01 + d / 10]
        for n in ("none", "batchnorm")
        for d in (2, 4)
    }
    runs = several(tmp_path, losses)
    report = reported(runs, baseline={"norm": "none"})
    against = {row.title: row.baseline and row.baseline.keys for row in report.rows}
    assert against["batchnorm n_layer=2"] == {"norm": "none", "model.n_layer": 2}
    assert against["none n_layer=2"] is None
    with pytest.raises(ComparisonError, match="--baseline: no group has norm=layernorm; there are "):
        reported(runs, baseline={"norm": "layernorm"})


def test_over_a_key_pairs_stay_pairs(tmp_path):
    losses = {
        f"norm={n} model.n_layer={d}": [2.0 + d + b, 2.3 + d + b, 1.9 + d + b]
        for n, b in (("layernorm", 0.0), ("none", 0.1))
        for d in (2, 4)
    }
    report = reported(several(tmp_path, losses), over=["model.n_layer"])
    assert [row.title for row in report.rows] == ["layernorm", "none"]
    assert report.rows[1].difference.mean == pytest.approx(0.1)


def test_rates_are_confounded_or_each_its_own_best(tmp_path):
    one = reported(several(tmp_path / "a", {"norm=none": [2.0], "norm=layernorm": [2.0]}))
    assert "One learning rate for all, 0.002" in one.said[1]
    assert "confounded" in one.said[1]
    losses = {
        f"norm={n} optim.learning_rate={r}": [2.0, 2.1] for n in ("none", "layernorm") for r in (1e-3, 1e-2)
    }
    several_rates = reported(several(tmp_path / "b", losses))
    assert "Each at its own best learning rate of 0.001, 0.01" in several_rates.said[1]
    assert len(several_rates.rows) == 2
    mixed = {"norm=none optim.learning_rate=1e-3": [2.0], "norm=layernorm optim.learning_rate=1e-2": [2.0]}
    assert (
        "Confounded: each group has one learning rate, and they differ"
        in reported(several(tmp_path / "c", mixed)).said[1]
    )


def test_verdicts_are_of_the_second_stage_alone(tmp_path):
    """In the first stage none seems better by far; on fresh seeds it is not."""
    first = {
        f"norm={n} optim.learning_rate={r} train.steps=10": [b, b + 0.01]
        for n, b in (("none", 1.0), ("layernorm", 2.0))
        for r in (1e-3, 3e-3, 1e-2)
    }
    final = {
        f"norm={n} optim.learning_rate=3e-3 train.steps=20": [2.0, 2.1, 2.2] for n in ("none", "layernorm")
    }
    tuned = {f"{arguments} tuned=[optim.learning_rate]": losses for arguments, losses in final.items()}
    runs = several(tmp_path, first | tuned)
    report = reported(runs)
    assert len(report.runs) == 6
    assert verdicts(report)["none"] == "not distinguishable at 3 seeds"
    assert report.said[1] == "Each at its own best learning rate, chosen by other runs on other seeds."
    assert len(report.sensitivities) == 2


def test_what_else_differs_between_runs_is_warned_of(tmp_path):
    runs = several(tmp_path / "a", {"norm=layernorm": [2.0]})
    runs += several(
        tmp_path / "b",
        {"norm=none": [2.0]},
        code={"train.py": "4567"},
        packages={"torch": "2.14.0"},
        threads=2,
    )
    warnings = " ".join(reported(runs).warnings)
    assert "the project's code differs between runs: train.py" in warnings
    assert "torch differ between runs: '2.13.0', '2.14.0'" in warnings
    assert "threads differ between runs: 1, 2" in warnings
    assert "processor" not in warnings


def test_a_leak_is_at_its_row_and_in_the_warnings(tmp_path):
    report = reported(several(tmp_path, THREE))
    assert [line["leaks"] for line in cells(report)] == ["", "LEAKS", ""]
    assert any(w.startswith("batchnorm: it LEAKS") for w in report.warnings)


def test_a_metric_that_no_run_has_is_refused_and_another_that_is_no_loss_is_higher_or_lower(tmp_path):
    curve = {5: {"train/tokens_per_s": 100.0}}
    runs = several(tmp_path / "a", {"norm=layernorm": [2.0, 2.1]}, curve=curve)
    runs += several(tmp_path / "b", {"norm=none": [2.0, 2.1]}, curve={5: {"train/tokens_per_s": 200.0}})
    with pytest.raises(ComparisonError, match="--metric: no run has nope; they have .*val/full_loss"):
        reported(runs, "nope")
    assert verdicts(reported(runs, "train/tokens_per_s"))["none"] == "higher"


def test_the_data_regime_is_in_every_report(tmp_path):
    [said, _] = reported(several(tmp_path, THREE)).said
    assert said.startswith(
        "Data regime: 800,000 parameters; 4,000,000 unique training tokens; 2,048,000 tokens"
    )
    assert "0.51 epochs" in said


def test_the_table_in_markdown_has_a_line_a_group(tmp_path):
    lines = markdown(cells(reported(several(tmp_path, THREE)))).splitlines()
    assert len(lines) == 2 + 3
    assert {line.count("|") for line in lines} == {lines[0].count("|")}
