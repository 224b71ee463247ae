"""A report follows from the runs: verdicts, refusals, warnings, and the command that would settle
it."""

import pytest

from comparison.decisions import in_one_word
from comparison.drawing.glance import sentence
from comparison.groups import ComparisonError, title
from comparison.load import load
from comparison.report import Report, build_report
from comparison.table import cells, verdict
from comparison.write import markdown
from tests.comparison.runs import several
from tests.helpers.run_folders import BASE, made

PAIR = [2.0, 2.1]  # the losses of two seeds
THREE = {
    "norm=layernorm": [2.00, 2.05, 1.95],
    "norm=batchnorm": [2.30, 2.351, 2.249],
    "norm=none": [2.00, 2.10, 1.98],
}


def report_of(folder, losses, **options) -> Report:
    return build_report(several(folder, losses), **options)


def verdicts(report: Report) -> dict[str, str]:
    return {row.title: row.verdict for row in report.rows}


def with_speeds(folder, speeds, seeds=PAIR):
    """Return the runs of each command line, with this train/tokens_per_s."""
    return [
        run
        for arguments, speed in speeds.items()
        for run in several(folder / arguments, {arguments: seeds}, curve={5: {"train/tokens_per_s": speed}})
    ]


def test_verdicts_are_of_differences_paired_by_seed(tmp_path):
    """Without pairing, 2.30 ± 0.13 and 2.00 ± 0.12 would be distinguished less surely."""
    report = report_of(tmp_path, THREE)
    assert verdicts(report) == {
        "layernorm": "baseline",
        "batchnorm": "worse",
        "none": "not distinguishable at 3 seeds",
    }
    rows = {row.title: row for row in report.rows}
    assert rows["batchnorm"].difference.mean == pytest.approx(0.3)
    assert rows["batchnorm"].difference.half < 0.01
    assert rows["none"].seed_range[0] > 3
    first, second = rows["none"].command.split(" && ")
    assert first.startswith("python train.py -m norm=none seed=3,4,5")
    assert second.startswith("python train.py -m norm=layernorm seed=3,4,5")
    assert report.rows[0].title == "layernorm"  # the baseline is first
    lines = markdown(cells(report)).splitlines()
    assert len(lines) == 2 + 3
    assert {line.count("|") for line in lines} == {lines[0].count("|")}


def test_one_seed_is_no_verdict_and_asks_for_three(tmp_path):
    row = report_of(tmp_path, {"norm=layernorm": [2.0], "norm=none": [2.5]}).rows[1]
    assert row.verdict == "no verdict: 1 common seed"
    commands = (f"python train.py -m norm={norm} seed=1,2" for norm in ("none", "layernorm"))
    assert row.command == " && ".join(commands)
    assert row.difference.mean == 0.5


def test_seeds_that_only_one_has_do_not_count_and_it_is_reported(tmp_path):
    report = report_of(tmp_path, {"norm=layernorm": PAIR, "norm=none": [2.5, 2.6, 2.7, 2.8]})
    assert report.rows[1].difference.n == 2
    assert "none: only 2 of its 4 seeds are shared with the baseline" in report.warnings
    assert [line["seeds"] for line in cells(report)] == ["2", "2 of 4"]
    assert verdicts(report)["none"] == "no verdict: 2 common seeds"
    assert report.rows[1].command == "python train.py -m norm=layernorm seed=2,3"


def test_any_diverged_seed_and_there_is_no_mean_and_no_command(tmp_path):
    report = report_of(tmp_path, {"norm=layernorm": PAIR, "norm=none": [2.0, None]})
    assert verdicts(report)["none"] == "diverged 1 of 2"
    [line] = [line for line in cells(report) if line["norm"] == "none"]
    assert (line["val/full_loss"], line["difference"], line["diverged"]) == ("—", "—", "1 of 2")
    assert report.rows[1].command == ""
    assert not any("shared with the baseline" in warning for warning in report.warnings)
    report = report_of(tmp_path / "b", {"norm=layernorm": [None, 2.1], "norm=none": PAIR})
    assert verdicts(report)["none"] == "the baseline diverged"


def test_the_baseline_can_be_chosen_and_all_else_is_equal(tmp_path):
    losses = {
        f"norm={n} model.n_layer={d}": [2.0 + d / 10, 2.01 + d / 10]
        for n in ("none", "batchnorm")
        for d in (2, 4)
    }
    runs = several(tmp_path, losses)
    report = build_report(runs, baseline={"norm": "none"})
    against = {row.title: row.baseline and row.baseline.keys for row in report.rows}
    assert against["batchnorm n_layer=2"] == {"norm": "none", "model.n_layer": 2}
    assert against["none n_layer=2"] is None
    with pytest.raises(ComparisonError, match="--baseline: no group has norm=layernorm; available: "):
        build_report(runs, baseline={"norm": "layernorm"})


def test_without_the_usual_norm_each_norm_is_compared_with_itself_at_the_usual_placement(tmp_path):
    crossed = {
        f"norm={norm} placement={place}": PAIR for norm in ("rmsnorm", "dyt") for place in ("pre", "post")
    }
    against = {
        row.title: row.baseline and title(row.baseline.keys) for row in report_of(tmp_path, crossed).rows
    }
    assert against == {
        "dyt pre": None,
        "rmsnorm pre": None,
        "dyt post": "dyt pre",
        "rmsnorm post": "rmsnorm pre",
    }


def test_options_of_a_norm_are_those_of_the_rows_own_baseline_if_no_norm_is_usual(tmp_path):
    norms = ("rmsnorm", "dyt norm.alpha=0.5", "dyt norm.alpha=1.0")
    crossed = {f"norm={norm} placement={place}": PAIR for norm in norms for place in ("pre", "post")}
    report = report_of(tmp_path, crossed)
    assert [row.verdict for row in report.rows].count("baseline") == 3
    assert all(
        row.baseline and title(row.baseline.keys) == row.title.replace("post", "pre")
        for row in report.rows
        if "post" in row.title
    )


def test_the_baseline_is_one_group_and_never_itself(tmp_path):
    losses = {"norm=layernorm placement=post": PAIR, "norm=batchnorm placement=pre": PAIR}
    assert [*verdicts(report_of(tmp_path / "a", losses)).values()].count("baseline") == 1
    eps = {f"norm=layernorm norm.eps={eps}": [2.0, 2.1 + eps] for eps in (1e-5, 1e-6)}
    report = report_of(tmp_path / "b", eps | {"norm=batchnorm": [2.0, 2.3]})
    assert [row.verdict for row in report.rows].count("baseline") == 1
    assert all(row.baseline for row in report.rows[1:])
    shared = report_of(tmp_path / "c", THREE, baseline={"norm": "none", "placement": "pre"})
    assert verdicts(shared)["none"] == "baseline"
    assert verdicts(shared)["layernorm"].startswith("not distinguishable")


def test_over_a_key_only_common_values_are_averaged(tmp_path):
    deep, shallow = {"norm=none model.n_layer=4": PAIR}, {"norm=layernorm model.n_layer=2": [3.0, 3.1]}
    losses = {"norm=layernorm model.n_layer=4": PAIR} | deep | shallow
    report = report_of(tmp_path / "a", losses, over=["model.n_layer"])
    assert report.rows[1].difference.mean == 0
    with pytest.raises(ComparisonError, match="--over: no value of model.n_layer is common to all groups"):
        report_of(tmp_path / "b", deep | shallow, over=["model.n_layer"])


def test_over_placements_each_is_at_the_rate_that_was_chosen_for_it(tmp_path):
    losses = {
        "norm=layernorm placement=pre optim.learning_rate=1e-2": [2.0, 2.1],
        "norm=layernorm placement=post optim.learning_rate=1e-3": [3.0, 3.1],
        "norm=none placement=pre optim.learning_rate=1e-3": [2.5, 2.6],
        "norm=none placement=post optim.learning_rate=1e-3": [3.5, 3.6],
    }
    report = report_of(tmp_path, losses, over=["placement"])
    means = {row.title: row.loss.mean for row in report.rows}
    assert means == pytest.approx({"layernorm": 2.55, "none": 3.05})


def test_rates_are_confounded_or_each_its_own_best(tmp_path):
    confounded = report_of(tmp_path / "a", {"norm=none": [2.0], "norm=layernorm": [2.0]})
    assert confounded.summary[1].startswith("All groups have one learning rate, 0.002: ")
    assert "confounded" in confounded.summary[1]
    losses = {f"norm={n} optim.learning_rate={r}": PAIR for n in ("none", "layernorm") for r in (1e-3, 1e-2)}
    several_rates = report_of(tmp_path / "b", losses)
    assert "Each group is at its own best learning rate of 0.001, 0.01" in several_rates.summary[1]
    assert len(several_rates.rows) == 2
    mixed = {"norm=none optim.learning_rate=1e-3": [2.0], "norm=layernorm optim.learning_rate=1e-2": [2.0]}
    sentence = report_of(tmp_path / "c", mixed).summary[1]
    assert "Confounded: each group has one learning rate, and they differ" in sentence


def test_an_arm_that_starts_as_its_paper_does_is_compared_with_the_usual_baseline(tmp_path):
    own_start = ("placement=post model.depth_scaled_init=false", "placement=deepnorm model.init=xavier")
    report = report_of(tmp_path / "a", {"placement=pre": PAIR} | dict.fromkeys(own_start, PAIR))
    assert {row.title for row in report.rows} == {
        "pre",
        "post depth_scaled_init=false",
        "deepnorm init=xavier",
    }
    assert all(row.baseline and title(row.baseline.keys) == "pre" for row in report.rows[1:])
    crossed = {
        f"placement={p} model.init={init}": PAIR for p in ("pre", "post") for init in ("gpt2", "xavier")
    }
    baselines = {
        row.title: row.baseline and title(row.baseline.keys)
        for row in report_of(tmp_path / "b", crossed).rows
    }
    assert baselines["post init=xavier"] == "pre init=xavier"
    assert baselines["post"] == "pre"
    runs = [
        run
        for row in report_of(tmp_path / "c", crossed).rows
        if row.title != "post init=xavier"
        for run in row.group.runs
    ]
    rows = {row.title: row for row in build_report(runs, baseline={"model.init": "xavier"}).rows}
    assert rows["post"].baseline is None  # never its own


def test_the_baseline_is_first_then_the_lowest_difference(tmp_path):
    losses = {"batchnorm": [2.2, 2.2], "dyt": [1.9, 1.9], "layernorm": [2.0, 2.0], "none": [2.1, 2.1]}
    runs = {f"norm={norm}": values for norm, values in losses.items()}
    assert [row.title for row in report_of(tmp_path / "a", runs).rows] == [
        "layernorm",
        "dyt",
        "none",
        "batchnorm",
    ]
    deep = {f"{norm} model.n_layer={n}": values for n in (2, 1) for norm, values in runs.items()}
    rows = report_of(tmp_path / "b", deep, over=["model.n_layer"]).rows
    assert [row.title for row in rows] == ["layernorm", "dyt", "none", "batchnorm"]
    rows = report_of(tmp_path / "c", deep).rows  # each depth has its own baseline: sorted by the keys
    assert [str(row.family.keys["model.n_layer"]) for row in rows] == ["1", "2", "1", "2", "1", "2", "1", "2"]


def test_other_differences_between_runs_are_warned_of(tmp_path):
    other = {"code": {"train.py": "4567"}, "packages": {"torch": "2.14.0"}, "threads": 2}
    runs = several(tmp_path / "a", {"norm=layernorm": [2.0]})
    runs += several(tmp_path / "b", {"norm=none": [2.0]}, **other)
    warnings = " ".join(build_report(runs).warnings)
    assert "the runs differ in the project's code: train.py" in warnings
    assert "the runs differ in torch: 2.13.0, 2.14.0" in warnings
    assert "the runs differ in threads: 1, 2" in warnings
    assert "processor" not in warnings


def test_many_changed_files_are_counted_by_folder(tmp_path):
    files = [f"model/{name}.py" for name in "abcd"] + ["train.py", "training/loop.py"]
    runs = several(tmp_path / "a", {"norm=layernorm": [2.0]}, code=dict.fromkeys(files, "1"))
    runs += several(tmp_path / "b", {"norm=none": [2.0]}, code=dict.fromkeys(files, "2"))
    warnings = build_report(runs).warnings
    assert "the runs differ in the project's code: 6 files of model, train.py, training" in warnings


def test_a_leak_is_at_its_row_and_in_the_warnings(tmp_path):
    report = report_of(tmp_path, THREE)
    assert [line["leaks"] for line in cells(report)] == ["", "", "LEAKS"]  # sorted by the loss
    assert any(w.startswith("batchnorm: it LEAKS") for w in report.warnings)


def test_a_metric_that_no_run_has_is_refused_and_one_that_is_no_loss_is_higher_or_lower(tmp_path):
    runs = [
        load(
            made(
                tmp_path,
                f"norm={norm}",
                f"seed={seed}",
                curve={5: {"train/tokens_per_s": speed * (1 + seed / 100)}},
            )
        )[0]
        for norm, speed in (("layernorm", 100), ("none", 200))
        for seed in range(3)
    ]
    with pytest.raises(ComparisonError, match="--metric: no run has nope; choose from .*val/full_loss"):
        build_report(runs, "nope")
    assert verdicts(build_report(runs, "train/tokens_per_s"))["none"] == "higher"
    runs += several(tmp_path / "c", {"norm=batchnorm": PAIR}, curve={5: {"val/batch_stats_gap": 0.1}})
    assert verdicts(build_report(runs, "val/batch_stats_gap"))["none"] == "no val/batch_stats_gap to compare"


def test_the_direction_of_a_metric_is_said_as_it_is(tmp_path):
    assert in_one_word("lower", "val/bpb") == "better"
    report = build_report(
        with_speeds(tmp_path, {"norm=layernorm": 100.0, "norm=none": 200.0}), "train/tokens_per_s"
    )
    assert sentence(report).startswith("No arm is shown to be lower than layernorm.")


def test_rates_are_chosen_by_loss_whatever_is_compared(tmp_path):
    runs = []
    for rate, loss, speed in ((1e-3, 3.0, 50.0), (1e-2, 2.0, 100.0)):
        arms = {f"norm={norm} optim.learning_rate={rate}": speed for norm in ("none", "layernorm")}
        runs += with_speeds(tmp_path, arms, [loss, loss + 0.1])
    report = build_report(runs, "train/tokens_per_s")
    assert {row.family.best for row in report.rows} == {1e-2}
    assert report.sensitivities == []


def test_the_data_regime_is_in_every_report(tmp_path):
    [sentence, _] = report_of(tmp_path, THREE).summary
    start = "Data regime: 800,000 parameters; 4,000,000 unique training tokens; 2,048,000 tokens"
    assert sentence.startswith(start)
    assert "0.51 epochs" in sentence


def test_a_key_that_another_determines_is_not_a_column(tmp_path):
    report = report_of(tmp_path, {"model.bias=true": PAIR, "model.bias=false": [2.2, 2.31]})
    assert [row.title for row in report.rows] == ["bias=false", "bias=true"]
    assert report.rows[1].difference.n == 2


def test_a_norm_of_another_site_is_a_column_unless_it_is_the_norm(tmp_path):
    same = {f"norm={norm} model.qk_norm=same": PAIR for norm in ("layernorm", "rmsnorm")}
    assert report_of(tmp_path / "a", same).keys == ["norm"]
    options = {f"norm.eps={eps} model.qk_norm=same": PAIR for eps in (1e-3, 1e-5)}
    assert report_of(tmp_path / "b", options).keys == ["norm.eps"]
    report = report_of(tmp_path / "c", {f"model.qk_norm={name}": PAIR for name in ("layernorm", "none")})
    assert report.keys == ["model.qk_norm"]
    assert [row.title for row in report.rows if row.verdict == "baseline"] == ["qk_norm=none"]


def test_no_command_names_a_preset_that_is_gone(tmp_path):
    losses = {"norm=layernorm": [2.0], "norm=none": [2.5]}
    for preset, is_there in (("speedrun", True), ("fair_ablation", False)):
        report = build_report(several(tmp_path / preset, losses, overrides=[f"experiment={preset}"]))
        assert (f"experiment={preset} seed=1,2" in report.rows[1].command) is is_there


def test_what_norm_and_placement_settled_is_reported(tmp_path):
    runs = []
    for placement, alpha in (("pre", None), ("deepnorm", 1.68), ("keel", 8.0)):
        settled = {"model.final_norm": "same" if alpha is None else "none", "model.embedding_scale": False}
        settled |= {"placement.alpha": alpha} if alpha else {}
        runs += [load(made(tmp_path, f"placement={placement}", settled=settled))[0]]
    [sentence] = [line for line in build_report(runs).summary if line.startswith("Norm, ")]
    assert sentence == (
        "Norm, placement and size decide: model.embedding_scale=false; "
        "model.final_norm=same for pre, else none; placement.alpha=1.68 for deepnorm, 8 for keel."
    )


def test_what_they_settled_is_told_by_the_one_of_them_that_settles_it(tmp_path):
    arms = [
        ("layernorm", "pre", {"model.embedding_scale": False, "model.final_norm": "same"}),
        ("dyt", "pre", {"model.embedding_scale": True, "model.final_norm": "same"}),
        (
            "layernorm",
            "deepnorm",
            {"model.embedding_scale": False, "model.final_norm": "none", "placement.beta": 0.4},
        ),
        (
            "dyt",
            "deepnorm",
            {"model.embedding_scale": True, "model.final_norm": "none", "placement.beta": 0.4},
        ),
        ("dyt", "post", {"model.embedding_scale": True, "model.final_norm": "none"}),
    ]
    runs = [load(made(tmp_path, f"norm={n}", f"placement={p}", settled=settled))[0] for n, p, settled in arms]
    [sentence] = [line for line in build_report(runs).summary if line.startswith("Norm, ")]
    assert sentence == (
        "Norm, placement and size decide: model.embedding_scale=true for dyt, else false; "
        "model.final_norm=same for pre, else none; placement.beta=0.4 for deepnorm."
    )


@pytest.mark.parametrize(("rates", "verdict"), [((1e-3,), "better"), ((1e-3, 2e-3), "no baseline with")])
def test_versions_of_an_edited_norm_are_each_compared_with_the_baseline(tmp_path, rates, verdict):
    runs = several(tmp_path / "a", {"norm=layernorm optim.learning_rate=1e-3": BASE})
    for i, (version, rate) in enumerate((version, rate) for version in "ab" for rate in rates):
        ends = [loss - 0.1 - i / 100 + 1e-3 * (seed % 2) for seed, loss in enumerate(BASE)]
        arm = {f"norm=rmsnorm optim.learning_rate={rate}": ends}
        runs += several(tmp_path / f"{version}{i}", arm, group=f"rmsnorm-pre-{version}{i}")
    versions = [row for row in build_report(runs).rows if row.title.startswith("rmsnorm")]
    assert len(versions) == 2 * len(rates)
    assert all(row.verdict.startswith(verdict) for row in versions)


def test_an_arm_with_the_same_numbers_as_the_baseline_is_identical(tmp_path):
    report = report_of(tmp_path, {"norm=layernorm": [2.0, 2.05, 1.95], "norm=rmsnorm": [2.0, 2.05, 1.95]})
    assert (report.rows[1].verdict, report.rows[1].outcome) == ("equivalent (identical)", "equivalent")
    assert report.rows[1].command == ""


def test_a_table_of_diverged_runs_has_a_row_for_each_arm(tmp_path):
    report = report_of(
        tmp_path, {"norm=layernorm": [None] * 3, "norm=none optim.learning_rate=1e-2": [None] * 3}
    )
    assert verdicts(report)["none"] == "diverged 3 of 3"
    assert [row["rate"] for row in cells(report)] == ["0.002", "0.01"]
    assert not any("shared with the baseline" in line for line in report.warnings)


def slightly_different(count):
    """Return losses whose differences have a mean of about 1.3 of its standard error."""
    noise = [(-1) ** seed * 0.1 + 0.12 / count**0.5 for seed in range(count)]
    return {"norm=layernorm": [2.0] * count, "norm=none": [2 + x for x in noise]}


def test_seeds_that_may_not_settle_it_are_added_if_the_user_wants(tmp_path):
    row = report_of(tmp_path, slightly_different(10)).rows[1]
    assert verdict(row) == "not distinguishable at 10 seeds; even 50 may not settle it"
    assert (row.outcome, row.missing) == ("open", 40)
    assert "seed=10," in row.command


@pytest.mark.parametrize("count", [50, 60])
def test_no_command_trains_more_seeds_than_are_judged(tmp_path, count):
    row = report_of(tmp_path, slightly_different(count)).rows[1]
    assert verdict(row) == "not distinguishable at 50 seeds, the most that are judged"
    assert (row.outcome, row.command) == ("open", "")


def test_a_baseline_of_two_versions_has_to_be_named(tmp_path):
    runs = several(tmp_path / "none", {"norm=none": [2.5, 2.6]})
    for code in ("aaaa", "bbbb"):
        runs += several(tmp_path / code, {"norm=layernorm": [2.0, 2.1]}, group=f"layernorm-pre-{code}")
    row = build_report(runs).rows[-1]
    assert row.verdict == "its baseline has 2 versions of its code; name one with --baseline …,code=…"
    rows = build_report(runs, baseline={"norm": "layernorm", "code": "aaaa"}).rows
    assert [row.difference.n for row in rows if row.title == "none"] == [2]


def test_implementations_that_hardly_differ_are_equivalent(tmp_path):
    losses = {"norm=layernorm": [2.0] * 3, "norm=torch_layernorm": [2 + 1e-7, 2 - 2e-7, 2 + 3e-7]}
    assert verdicts(report_of(tmp_path, losses))["torch_layernorm"] == "equivalent (within 0.01)"
    shifted = {"norm=layernorm": [2.0] * 3, "norm=torch_layernorm": [2.5] * 3}  # no noise: is it a mistake?
    row = report_of(tmp_path / "b", shifted).rows[1]
    assert (row.outcome, row.command) == ("unfit", "")


def test_a_baseline_that_where_makes_stays_one(tmp_path):
    losses = {
        "norm=layernorm model.n_layer=2": THREE["norm=layernorm"],
        "norm=rmsnorm model.n_layer=4": THREE["norm=layernorm"],
        "norm=dyt model.n_layer=4": THREE["norm=batchnorm"],
    }
    plan = {
        "written": "",
        "arms": ["all"],
        "arm": "all",
        "seeds": [0, 1, 2],
        "ended_before": [],
        "baseline": {},
    }
    report = build_report(several(tmp_path, losses, plan=plan), where=["model.n_layer=4"])
    assert sorted(row.outcome for row in report.rows) == ["baseline", "better"]
