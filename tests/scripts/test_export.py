"""transformers loads an exported folder, sample.py loads exported weights, and a card describes both."""

import json
import re
import stat
from pathlib import Path

import pytest
import safetensors.torch
import yaml

from data.errors import ConfigError
from scripts.export import unlike_gpt2
from tests.conftest import LETTERS, TRAIN, configured, daily
from tests.helpers import gpt2_models, programs
from tests.helpers.contract import check_refused

GREEDY = ("prompt=Now is the ", "temperature=0", "max_new_tokens=40", "precision=fp32")


def trained(folder: Path, *more: str) -> Path:
    """Train for a second and return the run's folder."""
    (folder / "text.txt").write_text(LETTERS, encoding="utf-8")
    programs.succeed("train.py", *TRAIN, *more, cwd=folder)
    [run] = folder.glob("runs/*-*")
    return run


def exported(folder: Path, *arguments: str) -> str:
    return programs.succeed("scripts/export.py", *arguments, cwd=folder).stdout


def sampled(folder: Path, *source: str) -> str:
    return programs.succeed("sample.py", *source, *GREEDY, cwd=folder).stdout


GPT2S = [
    ("data.tokenizer=char",),
    ("norm.elementwise_affine=false", "model.activation=gelu_tanh", "model.dropout=0.1"),
    ("data.tokenizer=bpe", "data.vocab_size=300", "model.bias=true"),
    ("norm=torch_layernorm", "model.activation=relu2", "model.tie=false", "norm.eps=1e-3"),
]


@pytest.mark.slow
@pytest.mark.parametrize("options", daily([(each,) for each in GPT2S], others="long"), ids=" ".join)
def test_transformers_generates_the_text_that_sample_prints(tmp_path, capsys, monkeypatch, options):
    trained(tmp_path, "model.block_size=64", "train.steps=20", "optim.learning_rate=1e-2", *options)
    assert ", for transformers;" in exported(tmp_path, "out=out")
    [lines] = re.findall(r"```python\n(.*?)```", (tmp_path / "out/README.md").read_text(), re.S)
    with monkeypatch.context() as patched:
        patched.chdir(tmp_path / "out")
        exec(lines, {})
    assert len(capsys.readouterr().out) > 15
    model, tokenizer = gpt2_models.loaded(tmp_path / "out")
    ids = tokenizer("Now is the ")["input_ids"]
    ours = sampled(tmp_path)
    assert ours == tokenizer.decode(ids + gpt2_models.greedy(model, ids, 40)) + "\n"
    for saved in (model, tokenizer):  # transformers loads and saves the export
        saved.save_pretrained(tmp_path / "again")
    assert sampled(tmp_path, "init_from=out") == sampled(tmp_path, "init_from=again") == ours


def test_gpt2s_layout_has_no_place_for_these():
    for options in (
        "norm=batchnorm placement=post",
        "norm=rmsnorm model.positions=rotary model.qk_norm=rmsnorm",
        "model.activation=swiglu model.embedding_scale=true",
        "model.final_norm=none model.embedding_norm=rmsnorm",
    ):
        assert sorted(unlike_gpt2(configured(*options.split()))) == sorted(options.split())


@pytest.mark.slow
def test_any_other_model_is_exported_for_sampling_and_for_init_from(tmp_path):
    other = ("norm=batchnorm", "placement=post", "model.positions=rotary", "model.qk_norm=rmsnorm")
    places = (f"runs_dir={tmp_path}/runs", f"data.path={tmp_path}/text.txt", "wandb.entity=me")
    trained(tmp_path, *other, *places)
    assert f"not for transformers, as GPT-2 has no {', '.join(other)};" in exported(tmp_path, "out=a/b")
    weights = tmp_path / "a/b/model.safetensors"
    sources = ((), (f"checkpoint={weights}",), ("init_from=a/b",))
    assert len({sampled(tmp_path, *source) for source in sources}) == 1
    assert not any("/" in name for name in safetensors.torch.load_file(weights))  # of the optimizer
    with safetensors.safe_open(weights, "pt") as file:
        said = file.metadata()["normgpt"] + (tmp_path / "a/b/README.md").read_text()
    assert str(tmp_path) not in said
    assert '"entity": null' in said

    config = configured(f"init_from={tmp_path}/a/b", "norm.eps=1e-3", "model.qk_norm=none")
    assert (config.norm.name, config.placement.name) == ("batchnorm", "post")
    assert (config.norm.options["eps"], config.model.qk_norm.name) == (1e-3, "none")
    train_on = ("init_from=a/b", "data=text", "data.path=text.txt", "data.cache=cache", "train.steps=2")
    for norm, words in (
        ((), "initialised from a/b\n"),
        (("norm=layernorm",), "initialised from a/b; left out"),
    ):
        assert words in programs.succeed("train.py", *train_on, *norm, cwd=tmp_path).stdout


def test_a_strangers_export_names_no_class_of_others(tmp_path):
    settings = configured().model_dump(by_alias=True)
    for target, words in (("os.path.join", "names the class os.path.join"), ("${oc.env:HOME}", "contain ${")):
        settings["norm"]["_target_"] = target
        meta = {"config": settings, "tokenizer": {"kind": "char", "chars": "ab"}}
        (folder := tmp_path / str(len(target))).mkdir()
        safetensors.torch.save_file({}, folder / "model.safetensors", {"normgpt": json.dumps(meta)})
        with pytest.raises(ConfigError, match=re.escape(words)):
            configured(f"init_from={folder}")


@pytest.mark.slow
def test_the_card_says_what_the_run_says(tmp_path):
    run = trained(tmp_path, "norm=batchnorm")
    exported(tmp_path, "out=out")
    card = (tmp_path / "out/README.md").read_text()
    status = json.loads((run / "status.json").read_text())
    assert f"# `{run.name}`" in card
    assert f"| val/full_loss | {status['final']:.4f} nats per token" in card
    assert f"| best val/loss | {status['best']['val/loss']:.4f} nats per token, at step 6 |" in card
    assert "| trained | 6 of 6 steps, 192 tokens; seed 0 |" in card
    assert "WARNING: this model LEAKS" in card
    front, settings = card.split("---\n")[1], card.split("```yaml\n")[1].split("```")[0]
    assert yaml.safe_load(front) == {"pipeline_tag": "text-generation", "tags": ["normgpt", "batchnorm"]}
    assert yaml.safe_load(settings)["norm"]["_target_"] == "model.batchnorms.BatchNorm"
    assert stat.S_IMODE((tmp_path / "out/model.safetensors").stat().st_mode) == 0o644


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("", "out: the key is missing; give out=…"),
        ("out=taken", "out: taken already exists; choose another folder"),
        ("out=new/out", "runs_dir: runs has no run"),
        ("out=out init_from=taken", "init_from: taken: has no model.safetensors; name a folder"),
    ],
)
def test_a_mistake_is_a_line_and_leaves_nothing(tmp_path, arguments, line):
    (tmp_path / "taken").mkdir()
    check_refused(programs.run("scripts/export.py", *arguments.split(), cwd=tmp_path), line)
    assert [file.name for file in tmp_path.iterdir()] == ["taken"]


@pytest.mark.slow
def test_where_the_disk_is_full_it_says_so_and_leaves_nothing(tmp_path):
    trained(tmp_path, "model.n_embd=64")
    done = programs.run("scripts/export.py", "out=out", cwd=tmp_path, TEST_FILE_SIZE="20000")
    check_refused(done, "out")
    assert not (tmp_path / "out").exists()
