"""transformers loads an exported folder, sample.py loads exported weights, and a card describes both."""

import json
import re
import stat
from pathlib import Path
from typing import Any

import pytest
import safetensors
import yaml

from scripts import gpt2_writer
from tests.conftest import LETTERS, TINY, configured, daily
from tests.helpers import gpt2_models, programs
from tests.helpers.contract import check_refused
from training import checkpoint as checkpoint_file

EXPORT = "scripts/export.py"


def trained(folder: Path, *more: str) -> Path:
    """Train for a second and return the run's folder."""
    (folder / "text.txt").write_text(LETTERS, encoding="utf-8")
    common = ("data=text", "data.path=text.txt", "data.cache=cache", *TINY)
    given = {one.split("=")[0] for one in more}
    programs.succeed("train.py", *(c for c in common if c.split("=")[0] not in given), *more, cwd=folder)
    [run] = folder.glob("runs/*-*")
    return run


def exported(folder: Path, *arguments: str) -> Any:
    return programs.run(EXPORT, *arguments, cwd=folder)


GPT2S = [
    ("data.tokenizer=char",),
    ("data.tokenizer=bpe", "data.vocab_size=300", "model.bias=true"),
    ("norm=torch_layernorm", "model.activation=relu2", "model.tie=false", "norm.eps=1e-3"),
    ("norm.elementwise_affine=false", "model.activation=gelu_tanh", "model.dropout=0.1"),
    ("model.activation=silu",),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    daily([(options,) for options in GPT2S], lambda number: number in (0, 3), others="long"),
    ids=" ".join,
)
def test_transformers_generates_the_text_that_sample_prints(tmp_path, capsys, monkeypatch, options):
    trained(tmp_path, "model.block_size=64", "train.steps=20", "optim.learning_rate=1e-2", *options)
    programs.succeed(EXPORT, "format=hf", "out=out", cwd=tmp_path)
    [lines] = re.findall(r"```python\n(.*?)```", (tmp_path / "out/README.md").read_text(), re.S)
    with monkeypatch.context() as patched:
        patched.chdir(tmp_path / "out")
        exec(lines, {})
    assert len(capsys.readouterr().out) > 15
    prompt = "Now is the "
    greedy = (f"prompt={prompt}", "temperature=0", "max_new_tokens=30", "precision=fp32")
    ours = programs.run("sample.py", *greedy, cwd=tmp_path)
    model, tokenizer = gpt2_models.loaded(tmp_path / "out")
    ids = tokenizer(prompt)["input_ids"]
    assert ours.stdout == tokenizer.decode(ids + gpt2_models.greedy(model, ids, 30)) + "\n"
    assert programs.run("sample.py", "init_from=out", *greedy, cwd=tmp_path).stdout == ours.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        "norm=batchnorm placement=post",
        "norm=rmsnorm model.positions=rotary model.qk_norm=rmsnorm",
        "model.activation=swiglu model.embedding_scale=true",
        "model.positions=none norm.eps=2",
        "model.final_norm=none model.embedding_norm=rmsnorm",
    ],
)
def test_gpt2s_layout_has_no_place_for_these(options):
    assert sorted(gpt2_writer.obstacles(configured(*options.split()))) == sorted(options.split())
    assert gpt2_writer.obstacles(configured("norm=torch_rmsnorm", "norm.eps=null")) == ["norm=torch_rmsnorm"]


def test_what_is_no_gpt2_is_refused_with_the_reason(tmp_path):
    trained(tmp_path, "train.steps=1", "norm=rmsnorm")
    reason = "hf is GPT-2's layout, which has no norm=rmsnorm; give format=safetensors"
    check_refused(exported(tmp_path, "format=hf", "out=out"), f"error: format: {reason}")
    assert not [file for file in tmp_path.iterdir() if "out" in file.name]


@pytest.mark.slow
def test_weights_alone_are_a_checkpoint_for_sampling(tmp_path):
    run = trained(tmp_path, "norm=batchnorm", "placement=post")
    assert exported(tmp_path, f"run={run}", "which=last", "format=safetensors", "out=a/b").returncode == 0
    [newest] = run.glob("checkpoints/step-*6.safetensors")
    assert not any("/" in name for name in checkpoint_file.load(tmp_path / "a/b/model.safetensors").tensors)
    assert (tmp_path / "a/b/model.safetensors").stat().st_size < newest.stat().st_size / 2
    texts = {
        programs.run("sample.py", f"checkpoint={file}", "max_new_tokens=30", cwd=tmp_path).stdout
        for file in (newest, "a/b/model.safetensors")
    }
    assert len(texts) == 1
    assert len(texts.pop()) > 20


@pytest.mark.slow
@pytest.mark.parametrize("trains", [True, False])
def test_weights_alone_do_not_say_where_their_user_has_things(tmp_path, trains):
    gpt2_models.saved(tmp_path / "theirs", chars="".join(sorted(set(LETTERS))))
    begun = f"init_from={tmp_path}/theirs"
    if trains:
        places = (f"runs_dir={tmp_path}/runs", f"data.path={tmp_path}/text.txt", begun)
        sizes = [f"model.{key}={size}" for key, size in (("n_layer", 2), ("n_head", 2), ("n_embd", 16))]
        trained(tmp_path, "wandb.entity=me", *places, *sizes)
        programs.succeed(EXPORT, "format=safetensors", "out=out", cwd=tmp_path)
    else:
        here = tmp_path / "theirs"
        programs.succeed(EXPORT, "format=safetensors", "out=../out", "init_from=.", cwd=here)
        assert checkpoint_file.load(tmp_path / "out/model.safetensors").meta.config.init_from == "theirs"
    with safetensors.safe_open(tmp_path / "out/model.safetensors", "pt") as file:
        said = file.metadata()["normgpt"] + (tmp_path / "out/README.md").read_text()
    assert str(tmp_path) not in said
    assert '"entity": null' in said
    assert "theirs" in said


@pytest.mark.slow
def test_the_card_says_what_the_run_says(tmp_path):
    run = trained(tmp_path, "norm=batchnorm")
    assert exported(tmp_path, "format=safetensors", "out=out").returncode == 0
    card = (tmp_path / "out/README.md").read_text()
    status = json.loads((run / "status.json").read_text())
    assert f"# `{run.name}`" in card
    assert f"| val/full_loss | {status['final']:.4f} nats per token" in card
    assert f"| best val/loss | {status['best']['val/loss']:.4f} nats per token, at step 6 |" in card
    assert "| trained | 6 of 6 steps, 192 tokens; seed 0 |" in card
    assert re.search(r"\| text \| text, tokenizer char, [\d,]+ tokens for training \|", card)
    assert "WARNING: this model LEAKS" in card
    front, settings = card.split("---\n")[1], card.split("```yaml\n")[1].split("```")[0]
    assert yaml.safe_load(front) == {"pipeline_tag": "text-generation", "tags": ["normgpt", "batchnorm"]}
    assert yaml.safe_load(settings)["norm"]["_target_"] == "model.batchnorms.BatchNorm"
    mode = stat.S_IMODE((tmp_path / "out/README.md").stat().st_mode)
    assert mode == 0o644
    programs.succeed("scripts/export.py", "run=.", "format=safetensors", f"out={tmp_path}/again", cwd=run)
    assert (tmp_path / "again/README.md").read_text() == card


@pytest.mark.slow
def test_a_card_without_the_runs_files_claims_nothing_of_them(tmp_path):
    [newest] = trained(tmp_path).glob("checkpoints/step-*6.safetensors")
    newest.rename(tmp_path / "alone.safetensors")
    assert exported(tmp_path, "checkpoint=alone.safetensors", "format=hf", "out=out").returncode == 0
    card = (tmp_path / "out/README.md").read_text()
    assert "val/full_loss" not in card
    assert "in this model no logit depends on later tokens" in card
    assert exported(tmp_path, "init_from=out", "format=hf", "out=again").returncode == 0
    card = (tmp_path / "again/README.md").read_text()
    assert "| trained | not by normgpt: these are the weights of out |" in card
    assert "learning_rate" not in card
    assert "shakespeare" not in card


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("format=hf", "out: the key is missing; give out=…"),
        ("out=out", "format: the key is missing; give format=hf|safetensors"),
        ("format=onnx out=out", "format: invalid value 'onnx'; it should be 'hf' or 'safetensors'"),
        ("format=hf out=taken", "out: taken already exists; choose another folder"),
        ("format=hf out=out run=a checkpoint=b", "run: checkpoint= also names a model to load"),
        ("format=hf out=new/out", "runs_dir: runs has no run"),
        ("format=hf out=out init_from=taken", "init_from: taken: config.json is missing; name a folder"),
    ],
)
def test_a_mistake_is_a_line_and_leaves_nothing(tmp_path, arguments, line):
    (tmp_path / "taken").mkdir()
    check_refused(exported(tmp_path, *arguments.split()), line)
    assert [file.name for file in tmp_path.iterdir()] == ["taken"]


def test_where_the_disk_is_full_it_says_so_and_leaves_nothing(tmp_path):
    trained(tmp_path)
    for form in ("hf", "safetensors"):
        arguments = (EXPORT, f"format={form}", "out=out")
        check_refused(programs.run(*arguments, cwd=tmp_path, TEST_FILE_SIZE="4096"), "out")
        assert not (tmp_path / "out").exists()
