"""Every choice composes, every key is checked, and no default hides outside of conf/."""

import re

import pytest
from pydantic import BaseModel

from cli.compose import help_on_keys
from cli.errors import checked
from cli.schema import Checked, RunConfig, SampleConfig
from data.errors import ConfigError
from scripts.export import ExportConfig
from tests.conftest import CONF, EARLIER_DEFAULTS, configured
from tests.helpers import gpt2_models

CHOICES = [
    (group.name, file.stem)
    for group in sorted(CONF.iterdir())
    if group.is_dir() and group.name not in ("finding", "study")  # of python -m findings and ablate.py
    for file in sorted(group.glob("*.yaml"))
]


@pytest.mark.slow
def test_every_choice_of_every_group_composes_and_is_valid():
    for group, choice in CHOICES:
        path = ["data.path=x"] if choice in ("text", "prepared", "nanogpt_gpt2") else []
        path += ["init_from=null"] if choice == "nanogpt_finetune" else []  # without it, a download
        assert isinstance(configured(f"{group}={choice}", *path), RunConfig)


def fields(kind: type[BaseModel]):
    for field in kind.model_fields.values():
        yield field
        if isinstance(field.annotation, type) and issubclass(field.annotation, Checked):
            yield from fields(field.annotation)


def test_defaults_have_one_home_which_is_yaml():
    for kind in (RunConfig, SampleConfig, ExportConfig):
        assert all(field.is_required() for field in fields(kind))


def test_a_config_survives_its_trip_through_plain_data_and_cannot_be_changed():
    config = configured("norm=batchnorm", "norm.momentum=0.2")
    assert config.norm.options["momentum"] == 0.2
    assert checked(RunConfig, config.model_dump(by_alias=True)) == config
    with pytest.raises(ValueError, match="frozen"):
        config.seed = 3


def test_norms_bias_follows_the_models_unless_it_is_given():
    assert configured("model.bias=true").norm.options["bias"] is True
    assert configured("model.bias=false", "norm.bias=true").norm.options["bias"] is True
    assert configured().norm.options["bias"] is False


WRONG = {  # an override -> the beginning of the line; more are in tests/guards/test_mistakes.py
    "train.steps=1.5": "train.steps: ",
    "train.steps=99999999999999999999": "train.steps: ",
    "+foo=1": "foo: unknown key",
    "~train.steps": "train.steps: the key is missing",
    "model.activation=relu": "model.activation: invalid value 'relu'; it should be 'gelu', 'gelu_tanh', ",
    "model.qk_norm=[layernorm,none]": "model.qk_norm: there is no \"['layernorm', 'none']\"; ",
    "model.final_norm=null": "model.final_norm: there is no 'None'; did you mean none",
    "data.path=x": "data.path: is not read by data=shakespeare; did you mean data=text data.path=FILE",
    "data.val_fraction=null": "data.val_fraction: invalid value None; give a number between 0 and 1",
    "+optim.beta3=0": "optim.beta3: unknown key; did you mean optim.beta",
    "+optim.momentum=0.9": "optim.momentum: the chosen optim has no such key",
    "stats.metrics=[act.rms/7.mlp]": "stats.metrics: there is no 'act.rms/7.mlp'",
    "stats.sites=[3.mlp]": "stats.sites: there is no '3.mlp'; a site is embed",
    "stats.histograms_every=70": "stats.histograms_every: 70 is not a multiple of every=150",
    "wandb.project=a/b": "wandb.project: invalid value 'a/b'; it should match pattern",
    "wandb.tags=[{a:1}]": "wandb.tags.0: invalid value {'a': 1}; it should be a valid string",
}
OUT_OF_RANGE = """
    optim.learning_rate=inf optim.learning_rate=-1 optim.learning_rate=1e400 model.n_layer=0 model.n_head=0
    model.n_embd=-8 model.block_size=0 train.grad_accum=0 model.dropout=-0.1 model.dropout=nan
    schedule.warmup_fraction=1.5 schedule.final_fraction=2 optim.beta2=1.0 train.checkpoint_every=-1
    train.eval_every=-3 train.log_every=0 data.vocab_size=255 data.path= seed=1.5 seed=true
    seed=9223372036854775808
""".split()


def test_a_wrong_value_is_one_line_that_names_the_key():
    for override, line in (WRONG | {word: f"{word.split('=')[0]}: " for word in OUT_OF_RANGE}).items():
        with pytest.raises(ConfigError, match=rf"^{re.escape(line)}.*$"):
            configured(override)


def test_a_variable_of_the_environment_is_text_and_nothing_in_it_is_resolved(monkeypatch):
    monkeypatch.setenv("SECRET", "hunter2")
    for name in ("TAGS", "ENTITY", "RUN_GROUP", "DIR"):
        monkeypatch.setenv(f"WANDB_{name}", "${oc.env:SECRET}")
    wandb = configured("seed=71").wandb  # an override that no other test has, as configs are cached
    assert [*wandb.tags, wandb.entity, wandb.group, wandb.dir] == ["${oc.env:SECRET}"] * 4
    monkeypatch.setenv("WANDB_TAGS", " a, b:c,,d ")
    assert configured("seed=72").wandb.tags == ["a", "b:c", "d"]
    assert configured("seed=73", "wandb.tags=[x,3]").wandb.tags == ["x", "3"]


def test_a_prepared_folder_needs_a_path_and_takes_no_split():
    with pytest.raises(ConfigError, match=r"data\.val_fraction: invalid value 0.1; .*null for data=prepared"):
        configured("data=prepared", "data.path=x", "data.val_fraction=0.1")
    plain = configured("data=text", "data.path=x").model_dump(by_alias=True)
    plain["data"]["path"] = None
    with pytest.raises(ConfigError, match=r"data\.path: data=text needs a path"):
        checked(RunConfig, plain)


BLOCK = (
    "norm=layernorm placement=pre model.bias=false model.activation=gelu model.tie=true model.init_scale=1 "
    "model.dropout="
)
ADAMW = "optim.kind=adamw optim.weight_decay=0.1 optim.eps=1e-8 train.grad_clip=1.0 optim.learning_rate="
COSINE = "schedule.shape=cosine schedule.final_fraction=0.1 schedule.warmup_fraction="
CHARS = "data.corpus=tinyshakespeare data.tokenizer=char train.grad_accum=1"
RECIPES = {  # config/train_shakespeare_char.py, README.md, config/train_gpt2.py and finetune_shakespeare.py
    "nanogpt_gpu": f"{CHARS} model.n_layer=6 model.n_head=6 model.n_embd=384 model.block_size=256 {BLOCK}0.2 "
    f"train.steps=5000 train.batch_size=64 {ADAMW}1e-3 optim.beta1=0.9 optim.beta2=0.99 {COSINE}0.02",
    "nanogpt_cpu": f"{CHARS} model.n_layer=4 model.n_head=4 model.n_embd=128 model.block_size=64 {BLOCK}0.0 "
    f"train.steps=2000 train.batch_size=12 {ADAMW}1e-3 optim.beta1=0.9 optim.beta2=0.99 {COSINE}0.05",
    "nanogpt_gpt2": "data.corpus=prepared data.tokenizer=gpt2 "
    f"model.n_layer=12 model.n_head=12 model.n_embd=768 model.block_size=1024 {BLOCK}0.0 "
    "train.steps=600000 train.batch_size=480 train.grad_accum=40 "
    "train.eval_every=1000 train.eval_windows=2400 "
    f"{ADAMW}6e-4 optim.beta1=0.9 optim.beta2=0.95 {COSINE}0.0033333333",
    "nanogpt_finetune": "data.corpus=tinyshakespeare data.tokenizer=gpt2 model.dropout=0.0 "
    "model.init_scale=1 train.steps=20 train.batch_size=32 train.grad_accum=32 "
    "train.eval_every=5 train.eval_windows=40 "
    f"{ADAMW}3e-5 optim.beta1=0.9 optim.beta2=0.95 schedule.shape=constant schedule.warmup_fraction=0.0",
}


@pytest.mark.parametrize("name", RECIPES)
def test_the_published_recipes_are_nanogpts_number_for_number(tmp_path, name):
    """Giving a preset nanoGPT's numbers changes nothing. A small GPT-2 stands in for the one to fine-tune."""
    experiment = [f"experiment={name}", *["data.path=x"] * (name == "nanogpt_gpt2")]
    if name == "nanogpt_finetune":
        gpt2_models.theirs(vocab_size=50257, n_embd=4).save_pretrained(tmp_path)
        experiment.append(f"init_from={tmp_path}")
    assert configured(*experiment) == configured(*experiment, *RECIPES[name].split())


def test_a_preset_of_published_numbers_does_not_follow_a_changed_default():
    for name, pinned in (("finding", EARLIER_DEFAULTS), ("cs336", EARLIER_DEFAULTS[:1])):
        assert configured(f"experiment={name}") == configured(f"experiment={name}", *pinned)


def test_the_command_line_overrides_an_experiment():
    config = configured("experiment=nanogpt_cpu", "data=text", "data.path=x", "train.steps=3", "norm=none")
    assert (config.data.corpus, config.train.steps, config.norm.name) == ("text", 3, "none")


def test_a_norm_of_a_site_is_plain_options_in_a_file(tmp_path):
    (tmp_path / "norm").mkdir()
    (tmp_path / "norm" / "mine.yaml").write_text("defaults: [layernorm]\neps: 1e-3\n")
    (tmp_path / "norm" / "other.yaml").write_text("_target_: model.norms.RMSNorm\neps: 1e-2\n")
    where = ("--config-dir", str(tmp_path))
    assert configured(*where, "norm=mine").norm.options["eps"] == 1e-3
    with pytest.raises(ConfigError, match=r"model\.qk_norm: .*mine\.yaml is not a plain list of options"):
        configured(*where, "model.qk_norm=mine")
    assert configured(*where, "model.qk_norm=other").model.qk_norm.options == {"eps": 1e-2}


def test_a_label_names_choices_as_on_the_command_line():
    assert configured("norm=none").label() == "norm=none placement=pre"
    assert configured("model.qk_norm=same", "model.embedding_norm=rmsnorm").label() == (
        "norm=layernorm placement=pre model.qk_norm=same model.embedding_norm=rmsnorm"
    )


def test_help_lists_every_key_that_the_words_choose(tmp_path):
    (tmp_path / "norm").mkdir()
    (tmp_path / "norm" / "mine.yaml").write_text("_target_: mine.Norm\nstrength: 1  # how much\n")
    text = help_on_keys(["-m", "norm=mine,none", "--config-dir", str(tmp_path), "-h"])
    assert "norm=mine, one of batchnorm" in text
    assert "strength: 1  # how much" in text
    names = {line.split(":")[0].strip() for line in text.splitlines()}
    for group in ("model", "data", "schedule", "stats", "train", "wandb"):
        assert {*RunConfig.model_fields[group].annotation.model_fields} <= names
    assert {*RunConfig.model_fields} - {
        "norm",
        "placement",
        "model",
        "data",
        "optim",
        "schedule",
        "stats",
    } <= names
