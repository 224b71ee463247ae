"""Runs that differ only in their seed are a group; every other difference is a key."""

from dataclasses import replace

import pytest

from comparison.groups import ComparisonError, average, differing, group_runs, select, short_names, title
from comparison.report import build_report
from tests.comparison.runs import several

METRIC = "val/full_loss"


def test_groups_have_the_keys_in_which_runs_differ(tmp_path):
    runs = several(tmp_path, {"norm=none": [2.0, 2.1], "model.n_layer=2": [2.2], "seed=0": [2.3]})
    groups = group_runs(runs, METRIC)
    assert [group.keys for group in groups] == [
        {"norm": "layernorm", "model.n_layer": 2},
        {"norm": "layernorm", "model.n_layer": 4},
        {"norm": "none", "model.n_layer": 4},
    ]
    assert groups[2].values == {0: 2.0, 1: 2.1}
    assert title(groups[0].keys) == "layernorm n_layer=2"


def test_a_title_leaves_out_further_norms_that_are_absent_unless_nothing_else_differs():
    keys = {
        "norm": "rmsnorm",
        "placement": "peri",
        "model.embedding_norm": "none",
        "model.qk_norm": "rmsnorm",
    }
    assert title(keys) == "rmsnorm peri qk_norm=rmsnorm"
    assert title({"model.qk_norm": "none"}) == "qk_norm=none"


def test_what_only_watches_and_options_of_another_norm_are_no_keys(tmp_path):
    runs = several(tmp_path, {"norm=batchnorm train.eval_every=7 wandb.tags=[x]": [2.0], "norm=none": [2.0]})
    assert [group.keys for group in group_runs(runs, METRIC)] == [{"norm": "batchnorm"}, {"norm": "none"}]
    more = several(tmp_path / "more", {"norm=batchnorm norm.momentum=0.5": [2.0]})
    assert group_runs([*runs, *more], METRIC)[0].keys.keys() == {"norm", "norm.momentum"}


def test_groups_that_differ_in_their_code_alone_are_told_apart(tmp_path):
    runs = several(tmp_path, {"seed=0": [2.0]}, group="layernorm-pre-aaaa")
    runs += several(tmp_path, {"seed=0": [2.1]}, group="layernorm-pre-bbbb")
    assert [group.keys for group in group_runs(runs, METRIC)] == [{"code": "aaaa"}, {"code": "bbbb"}]


def test_a_group_in_which_a_run_diverged_has_no_losses_to_compare(tmp_path):
    [group] = group_runs(several(tmp_path, {"norm=none": [2.0, None, 2.2]}), METRIC)
    assert (group.diverged, group.seeds, group.losses) == ({1}, [0, 1, 2], {})


def test_over_a_key_a_seed_has_the_mean_where_it_has_all(tmp_path):
    runs = several(
        tmp_path,
        {f"norm={n} model.n_layer={d}": [d + 0.0, d + 1.0] for n in ("none", "layernorm") for d in (2, 4)},
    )
    runs += several(tmp_path / "more", {"norm=none model.n_layer=2": [0.0, 0.0, 5.0]})[2:]
    runs += several(tmp_path / "deep", {"norm=none model.n_layer=8": [9.0]})
    groups, sentence = average(group_runs(runs, METRIC), "model.n_layer")
    assert sentence == (
        "Each number is a mean over model.n_layer=2,4; runs at 8, which not all arms have, are left out."
    )
    assert [group.keys for group in groups] == [{"norm": "layernorm"}, {"norm": "none"}]
    assert groups[1].values == {0: 3.0, 1: 4.0}
    with pytest.raises(
        ComparisonError, match="--over: the runs do not differ in model.bias.*they differ in norm"
    ):
        average(groups, "model.bias")
    with pytest.raises(ComparisonError, match="--over: each number is a mean over seeds already"):
        average(groups, "seed")


def test_a_short_name_that_two_keys_share_is_not_used():
    keys = ("norm.alpha", "placement.alpha", "optim.eps")
    assert list(short_names(keys).values()) == ["norm.alpha", "placement.alpha", "eps"]


def test_where_a_run_was_trained_and_how_its_tokens_are_called_tell_no_runs_apart(tmp_path):
    words = ("data.vocab_size=999",)
    runs = several(tmp_path / "a", {"": [2.0]}) + several(tmp_path / "b", {" ".join(words): [2.0]})
    assert differing(runs) == []
    runs[1].config["tokens"] = "others"
    assert differing(runs) == ["data.vocab_size", "tokens"]


@pytest.mark.parametrize(
    ("condition", "count"),
    [
        ("norm=none", 2),
        ("norm=none,layernorm", 3),
        ("norm=l*", 1),
        ("seed=1", 1),
        ("optim.learning_rate=2e-3", 3),
        ("optim.learning_rate=0.002", 3),
        ("model.bias=false", 3),
        ("init_from=null", 3),
    ],
)
def test_where_reads_values_as_people_write_them(tmp_path, condition, count):
    runs = several(tmp_path, {"norm=none": [2.0, 2.1], "norm=layernorm": [2.0]})
    assert len(select(runs, condition)) == count


def test_the_code_of_a_norm_is_a_key_like_others(tmp_path):
    """--over code, --where code=… and --baseline code=… once ended in a traceback, an error, and a row that
    was its own baseline."""
    runs = [
        run
        for name, loss in {"aaaa": 2.0, "bbbb": 2.1}.items()
        for run in several(tmp_path / name, {"": [loss, loss + 0.1]}, group=f"layernorm-pre-{name}")
    ]
    runs += several(tmp_path / "none", {"norm=none": [2.2, 2.3]})
    assert [group.keys for group in average(group_runs(runs, METRIC)[:2], "code")[0]] == [
        {"norm": "layernorm"}
    ]
    with pytest.raises(ComparisonError, match="--over: no value of code is common"):
        average(group_runs(runs, METRIC), "code")
    assert {run.group for run in select(runs, "code=aaaa")} == {"layernorm-pre-aaaa"}
    rows = {row.title: row for row in build_report(runs, baseline={"code": "aaaa"}).rows}
    assert rows["layernorm code=aaaa"].outcome == "baseline"
    assert rows["layernorm code=bbbb"].baseline is rows["layernorm code=aaaa"].family


def test_a_value_that_is_shown_can_be_typed(tmp_path):
    values = (0.1234567, 0.1234568)
    runs = several(tmp_path, {f"optim.weight_decay={value}": [2.0] for value in values})
    titles = [row.title for row in build_report(runs).rows]
    assert titles == [f"weight_decay={value}" for value in values]
    for value in values:
        assert len(select(runs, f"optim.weight_decay={value}")) == 1
    lists = [
        replace(run, config=run.config | {"optim.betas": (0.9, end)})
        for run, end in zip(runs, (0.95, 0.99), strict=True)
    ]
    assert select(lists, "optim.betas=[0.9, 0.95]") == lists[:1]
    assert select(lists, "optim.betas=[0.9, 0.95],[0.9, 0.99]") == lists
