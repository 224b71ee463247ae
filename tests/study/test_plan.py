"""The words of ablate.py become arms, titles, trials and seeds, and study.json says them once and for all."""

import itertools
import json
import math
import re
import shlex
from functools import cache

import pytest
import yaml

from cli.compose import compose_all
from cli.errors import CONF
from data.errors import ConfigError
from study import plan
from study.files import Study, write_once
from study.plan import compared_jobs, composing, declare, difference, read_words, trial_jobs, words_and_arms
from study.table import short
from study.trials import AS_GIVEN
from tests.conftest import LETTERS, TRAIN, configured
from tests.helpers.studies import BASE, OTHER
from training.identity import folder_of

PRESET = {
    "grid": {"norm": "layernorm,rmsnorm", "placement": "pre"},
    "also": ["norm=dyt placement=pre norm.alpha=0.8"],
    "runs": "train.steps=5 train.eval_every=100",
}
once = cache(lambda words: compose_all([words])[0])  # composing takes a tenth of a second


@pytest.fixture
def declared(tmp_path, monkeypatch):
    """Return a function from words to what the preset and they declare; arms are not tried, and all are
    different models."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(LETTERS)
    (tmp_path / "mine" / "study").mkdir(parents=True)
    digests = itertools.count()

    def different(arms):
        return [{"precision": "fp32", "digest": next(digests), "parameters": 1} for _ in arms]

    monkeypatch.setattr(plan, "try_arms", different)
    monkeypatch.setattr(plan, "compose_all", lambda jobs: [once(tuple(job)) for job in jobs])

    def make(*words: str, preset=PRESET):
        (tmp_path / "mine" / "study" / "own.yaml").write_text(yaml.safe_dump(preset))
        return declare(["--config-dir", "mine", "study=own", *TRAIN, *words])

    return make


@pytest.fixture
def study(declared):
    return lambda *words, **options: declared(*words, **options).study


def titles(study: Study) -> list[str]:
    return [short(arm.title) for arm in study.arms]


def test_a_grid_its_named_arms_and_what_all_runs_have(study):
    made = study()
    assert titles(made) == ["layernorm pre", "rmsnorm pre", "dyt pre"]
    assert made.arms[2].overrides == ["norm=dyt", "placement=pre", "norm.alpha=0.8"]
    assert "train.steps=6" in made.words  # typed, in place of the preset's 5
    assert "train.eval_every=100" in made.words
    assert (made.baseline, made.comparisons) == (BASE, 2)
    assert (made.metric, made.trials, made.trial_seeds, made.precision) == ("val/full_loss", [], [], "fp32")
    # a typed key of the grid replaces it and drops the named arms
    typed = study("norm=layernorm", "placement=pre,post", "name=x")
    assert titles(typed) == ["layernorm pre", "layernorm post"]


def test_other_words_with_several_values_multiply_all_arms_and_by_gives_each_its_baseline(study):
    made = study("model.n_layer=1,2", "by=model.n_layer")
    assert (len(made.arms), made.comparisons) == (6, 4)
    assert titles(made)[:2] == ["layernorm pre model.n_layer=1", "layernorm pre model.n_layer=2"]
    assert made.baseline_of(made.arms[-1]).title == f"{BASE} model.n_layer=2"
    made = study("placement=pre,post", "by=placement", "name=x")  # a word of the baseline
    after = {arm.title: made.baseline_of(arm).title for arm in made.arms}["norm=rmsnorm placement=post"]
    assert (after, made.comparisons) == ("norm=layernorm placement=post", 2)


def test_arms_of_the_same_runs_are_one_and_arms_may_differ_in_their_text(declared):
    """Threads are in no run's name, and may change the last digits, by which models are compared."""
    made = declared("train.threads=1,2", "norm=layernorm").study
    assert titles(made) == ["layernorm pre train.threads=1"]
    assert made.arms[0].same_as == [f"{BASE} train.threads=2"]
    texts = declared("data.val_fraction=0.1,0.2", "norm=layernorm", "seeds=1", "name=x")
    assert (len(texts.study.arms), texts.study.tokens) == (2, None)
    names = texts.compared_names(dict.fromkeys(texts.arms, AS_GIVEN), texts.study.seeds)
    assert len({name for [name] in names.values()}) == 2


def test_only_named_arms_whose_titles_say_what_differs(study):
    named = [BASE, "norm=layernorm", "norm=layernorm optim.learning_rate=1e-2", OTHER]
    made = study(preset={"also": named})  # placement=pre typed or not: one
    assert titles(made) == ["layernorm pre", "layernorm pre optim.learning_rate=1e-2", "rmsnorm pre"]
    assert made.baseline == made.arms[0].title


def test_a_studys_seeds_are_its_own(study):
    made, more = study("seeds=3"), study("seeds=6", "name=own_6")
    assert (len(made.seeds), len(made.further_seeds)) == (3, 3)
    assert not {*made.seeds} & {*made.further_seeds, *more.seeds}
    assert min(made.seeds) >= 2  # 0 and 1 are the tuning seeds


def test_trials_are_named_as_the_runs_of_their_commands(declared):
    tune = "tune={optim.learning_rate: log 1e-3 1e-2, model.init: gpt2 xavier}"
    whole = declared(tune, "trials=4", "seeds=2", "norm=layernorm,rmsnorm")
    made = whole.study
    assert (len(made.trials), made.trial_seeds, made.metric) == (4, [0, 1], "val/report_loss")
    first, others = trial_jobs(made), trial_jobs(made, {arm.title: [3] for arm in made.arms})
    assert (len(first), len(others)) == (2 * 4, 2)
    chosen = {arm.title: AS_GIVEN | {"settings": made.trials[3]} for arm in made.arms}
    names = whole.compared_names(chosen, made.seeds)
    runs = compared_jobs(made, {"arms": chosen}, names, made.seeds)
    for job in (first[0], others[1], runs[3]):
        config = configured(*job.overrides)
        assert folder_of(config, "fp32", made.tokens).name == job.name
    typed = declared("tune={optim.learning_rate: log 1e-3 1e-2}", "optim.learning_rate=1e-3", "name=x")
    assert typed.study.tune == {}


def test_the_same_words_go_on_and_others_are_refused(study, tmp_path):
    written = study()
    text = (tmp_path / "studies" / "own" / "study.json").read_text()
    assert study() == written
    more = study("wandb.mode=disabled")  # changes no run's identity
    assert more == written.model_copy(update={"words": more.words})
    assert "wandb.mode=disabled" in more.words
    for word, what in (
        ("train.steps=7", "another train.steps"),
        ("norm=layernorm,dyt", "other arms"),
        ("seeds=6", "other values of seeds"),
    ):
        with pytest.raises(
            ConfigError, match=f"^studies/own: was declared with {what}; give this study a new name: name="
        ):
            study(word)
    assert (tmp_path / "studies" / "own" / "study.json").read_text() == text
    first, *others = written.arms
    edited = written.model_copy(update={"arms": [first.model_copy(update={"group": "?"}), *others]})
    assert str(difference(edited, written)).startswith(f"another {BASE}: its options or")


def test_a_name_is_taken_letter_by_letter():
    for name in ("2026-11-29", "no", "007"):
        assert read_words(["study=norms", f"name={name}"])[0].folder.name == name


def test_a_file_is_written_once(tmp_path):
    write_once(tmp_path / "a.json", {"a": 1})
    with pytest.raises(FileExistsError):
        write_once(tmp_path / "a.json", {"a": 2})
    assert [json.loads(file.read_text()) for file in tmp_path.iterdir()] == [{"a": 1}]


MISTAKES = {
    "study=norm": "study: there is no 'norm'; did you mean norms?",
    "": "study: give one, such as study=norms; all: atlas, ",
    "study=norms trails=4": "trails: unknown key; did you mean trials?",
    "study=norms seed=0,1": "seed: a study draws its own seeds; give their number, as seeds=5",
    "study=norms fresh=true": "fresh: a study trains each run once",
    "study=norms seeds=many": "seeds: invalid value 'many'",
    "study=norms norm=rmsnorm,dyt placement=pre": "baseline: no arm is norm=layernorm placement=pre; add",
    "study=norms by=optim norm=layernorm placement=pre": "by: arms do not differ in optim; choose from norm",
    "study=norms --seeds 4": "--seeds: write seeds=4",
    "study=norms optim.learning_rate=interval(1,2)": "optim.learning_rate: an interval has no list",
    "study=norms name=a/b": "name: must not contain /",
    "study=norms tune={a": "tune: '{a' cannot be read as YAML: expected ',' or '}'",
    "study=cs336_layer_norm optim.learning_rate=3e-3": "optim.learning_rate: the study's arms set it; give",
    "study=cs336_layer_norm 'tune={optim.learning_rate: log 1 2}'": "tune: the arms differ in optim",
    "study=norms norm=layernorm placement=pre \"tune={optim.init: ''}\"": "tune.optim.init: has no",
}


def test_a_mistake_is_one_line(study):
    for words, message in MISTAKES.items():
        with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
            declare(shlex.split(words))
    with pytest.raises(ConfigError, match=r"own\.yaml: has no keys; write grid: or also:"):
        study(preset=["norm=layernorm"])
    with pytest.raises(ConfigError, match="^tune: train.eval_every: one of these keys changes no run"):
        study("tune={train.eval_every: 2 3}", "trials=2")


def test_every_study_of_conf_has_the_runs_that_its_comment_says():
    for file in sorted((CONF / "study").glob("*.yaml")):
        asked, typed, _ = read_words([f"study={file.stem}"])
        with composing(None) as parser:
            shared, arms = words_and_arms(asked, typed, parser)
            compose_all([[*shared, *arms[-1]]])
        trials = asked.trials if asked.tune else 0
        runs = trials + math.ceil(trials / 4) * (asked.trial_seeds - 1) + asked.seeds
        is_same = file.stem in ("norms", "fair")  # without a norm, pre and post are the same model
        said = re.findall(r"([\d,]+) runs", file.read_text())
        assert not said or f"{(len(arms) - is_same) * runs:,}" in said, file


def test_on_a_cluster_the_precision_must_be_known(study, monkeypatch):
    """Of the words or of the file; auto would be that of this machine."""
    preset = {"also": ["norm=layernorm", "norm=none"], "runs": "precision=fp32"}
    small = [word for word in TRAIN if not word.startswith("precision=")]
    monkeypatch.setattr("tests.study.test_plan.TRAIN", small)
    assert study("launcher=slurm", preset=preset).precision == "fp32"
    with pytest.raises(ConfigError, match="^precision: auto may become another precision on the cluster"):
        study("launcher=slurm", "precision=auto", "name=x", preset=preset)
