"""What a report says follows from the runs: verdicts, refusals, warnings, and the command that would settle
it."""

import pytest

from comparison.groups import ComparisonError
from comparison.load import load
from comparison.report import reported
from comparison.table import cells, markdown
from tests.helpers.run_folders import made, several

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
    """In the first stage none seems better by far; on fresh seeds it is not. Other runs are compared, too."""
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


def test_the_baseline_is_one_group_and_never_itself(tmp_path):
    losses = {f"norm={n} placement={p}": [2.0, 2.1] for n, p in (("layernorm", "post"), ("batchnorm", "pre"))}
    assert list(verdicts(reported(several(tmp_path / "a", losses))).values()).count("baseline") == 1
    eps = {
        "norm=layernorm norm.eps=1e-5": [2.0, 2.1],
        "norm=layernorm norm.eps=1e-6": [2.1, 2.21],
        "norm=batchnorm": [2.0, 2.3],
    }
    report = reported(several(tmp_path / "b", eps))
    assert [row.verdict for row in report.rows].count("baseline") == 1
    assert all(row.baseline for row in report.rows[1:])
    shared = reported(several(tmp_path / "c", THREE), baseline={"norm": "none", "placement": "pre"})
    assert verdicts(shared)["none"] == "baseline"
    assert verdicts(shared)["layernorm"].startswith("not distinguishable")


def test_a_key_that_another_makes_what_it_is_is_no_key_of_its_own(tmp_path):
    report = reported(several(tmp_path, {"model.bias=true": [2.0, 2.1], "model.bias=false": [2.2, 2.31]}))
    assert [row.title for row in report.rows] == ["bias=false", "bias=true"]
    assert report.rows[1].difference.n == 2


def test_over_a_key_only_values_that_all_have_are_averaged(tmp_path):
    losses = {"norm=layernorm model.n_layer=2": [3.0, 3.1], "norm=layernorm model.n_layer=4": [2.0, 2.1]}
    report = reported(
        several(tmp_path / "a", losses | {"norm=none model.n_layer=4": [2.0, 2.1]}), over=["model.n_layer"]
    )
    assert report.rows[1].difference.mean == 0
    apart = {"norm=layernorm model.n_layer=2": [3.0], "norm=none model.n_layer=4": [2.0]}
    with pytest.raises(ComparisonError, match="--over: no value of model.n_layer is common to all groups"):
        reported(several(tmp_path / "b", apart), over=["model.n_layer"])


def test_over_placements_each_is_at_the_rate_that_was_chosen_for_it(tmp_path):
    losses = {
        "norm=layernorm placement=pre optim.learning_rate=1e-2": [2.0, 2.1],
        "norm=layernorm placement=post optim.learning_rate=1e-3": [3.0, 3.1],
        "norm=none placement=pre optim.learning_rate=1e-3": [2.5, 2.6],
        "norm=none placement=post optim.learning_rate=1e-3": [3.5, 3.6],
    }
    report = reported(several(tmp_path, losses), over=["placement"])
    assert {row.title: row.loss.mean for row in report.rows} == pytest.approx(
        {"layernorm": 2.55, "none": 3.05}
    )


def test_the_edge_of_the_first_stage_is_warned_of_and_what_it_left_out_is_said(tmp_path):
    first = {
        f"norm={n} optim.learning_rate={r} train.steps=10": [2.0 - r, 2.1 - r]
        for n in ("none", "layernorm")
        for r in (1e-3, 1e-2)
    }
    final = {
        f"norm={n} optim.learning_rate=1e-2 train.steps=20 tuned=[optim.learning_rate]": [1.9, 2.0]
        for n in ("none", "layernorm")
    }
    mine = {"norm=batchnorm optim.learning_rate=1e-2 train.steps=20": [2.5, 2.6]}
    report = reported(several(tmp_path, first | final | mine))
    assert {row.title for row in report.rows} == {"layernorm", "none", "batchnorm"}
    assert "8 shorter runs, which chose the rates, are not compared." in report.said
    assert sum("is the edge of what was tried" in warning for warning in report.warnings) == 2


def test_rates_are_chosen_by_loss_whatever_is_compared(tmp_path):
    runs = []
    for rate, loss, speed in ((1e-3, 3.0, 50.0), (1e-2, 2.0, 100.0)):
        for norm in ("none", "layernorm"):
            arguments = {f"norm={norm} optim.learning_rate={rate}": [loss, loss + 0.1]}
            runs += several(tmp_path / f"{rate}{norm}", arguments, curve={5: {"train/tokens_per_s": speed}})
    report = reported(runs, "train/tokens_per_s")
    assert {row.family.best for row in report.rows} == {1e-2}
    assert report.sensitivities == []


def test_a_group_without_the_metric_has_nothing_to_compare(tmp_path):
    runs = several(tmp_path / "a", {"norm=layernorm": [2.0, 2.1]})
    runs += several(tmp_path / "b", {"norm=batchnorm": [2.0, 2.1]}, curve={5: {"val/batch_stats_gap": 0.1}})
    assert verdicts(reported(runs, "val/batch_stats_gap"))["batchnorm"] == "no val/batch_stats_gap to compare"


def test_a_diverged_group_asks_for_no_more_seeds(tmp_path):
    report = reported(several(tmp_path, {"norm=layernorm": [2.0, 2.1], "norm=none": [2.0, None]}))
    assert report.rows[1].command == ""
    assert not any("are the baseline's, too" in warning for warning in report.warnings)


def test_a_preset_in_a_command_starts_no_second_stage(tmp_path):
    runs = several(
        tmp_path, {"norm=layernorm": [2.0], "norm=none": [2.5]}, overrides=["experiment=fair_ablation"]
    )
    assert "experiment=fair_ablation hydra.sweeper.tune=null seed=1,2" in reported(runs).rows[1].command


def test_what_was_settled_by_norm_and_placement_is_said(tmp_path):
    runs = []
    for placement, alpha in (("pre", None), ("deepnorm", 1.68), ("keel", 8.0)):
        settled = {"model.final_norm": "same" if alpha is None else "none", "model.embedding_scale": False}
        settled |= {"placement.alpha": alpha} if alpha else {}
        for seed in (0, 1):
            folder = made(
                tmp_path, f"placement={placement}", f"seed={seed}", final=2.0 + seed, settled=settled
            )
            runs.append(load(folder)[0])
    [sentence] = [said for said in reported(runs).said if said.startswith("Settled")]
    assert sentence == (
        "Settled by norm and placement: model.final_norm=same for pre, else none; "
        "model.embedding_scale=false; placement.alpha=1.68 for deepnorm, 8 for keel."
    )


def test_a_norm_of_another_site_is_a_column_unless_it_is_the_norm(tmp_path):
    same = {"norm=layernorm model.qk_norm=same": [2.0, 2.1], "norm=rmsnorm model.qk_norm=same": [2.2, 2.31]}
    assert reported(several(tmp_path / "a", same)).keys == ["norm"]
    options = {
        "norm.eps=1e-3 model.qk_norm=same": [2.0, 2.1],
        "norm.eps=1e-5 model.qk_norm=same": [2.2, 2.31],
    }
    assert reported(several(tmp_path / "b", options)).keys == ["norm.eps"]
    sites = {
        f"model.qk_norm={name}": [2.0 + i / 10, 2.11 + i / 10] for i, name in enumerate(("layernorm", "none"))
    }
    report = reported(several(tmp_path / "c", sites))
    assert report.keys == ["model.qk_norm"]
    assert [row.title for row in report.rows if row.verdict == "baseline"] == ["qk_norm=none"]
