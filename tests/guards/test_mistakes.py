"""Wrong settings: one line, ``error: <where>: <what>; <what to do>``, with exit status 1; the nearest known
key is suggested; torch is not imported before what can be known without it."""

import re
import subprocess
import sys

import pytest

from cli.compose import arguments_for_hydra
from data.errors import ConfigError
from tests.conftest import LETTERS, ROOT

LINE = re.compile(r"error: .+: .+; .+")
TRAIN = {  # arguments -> words of the line
    "trian.steps=3": "trian.steps: unknown key; did you mean train.steps?",
    "lr=1e-3": "did you mean optim.learning_rate?",
    "model.n_layers=3": "did you mean model.n_layer?",
    "norm.alpha=0.5": "norm.alpha: the chosen norm has no such key; leave it out",
    "--norm layernorm": "--norm: write norm=layernorm",
    "--norm=layernorm": "--norm: write norm=layernorm",
    "--steps": "--steps: write steps=VALUE",
    "norm=layrnorm": "norm: there is no 'layrnorm'; did you mean layernorm?",
    "placement=inside": "placement: there is no 'inside'; choose one of",
    "model.qk_norm=layrnorm": "model.qk_norm: there is no 'layrnorm'; did you mean layernorm?",
    "norm=layernorm,none": "norm: several values; add -m",
    "train.steps=many": "train.steps: invalid value 'many'; it should be a valid integer",
    "train.steps=-1": "train.steps: invalid value -1",
    "train.steps=true": "train.steps: invalid value True",
    "train.steps=": "train.steps: invalid value",
    "train.batch_size=0": "train.batch_size: invalid value 0",
    "train.grad_accum=3": "train.batch_size: 32 is not divisible by grad_accum=3",
    "model.n_head=3": "model.n_embd: 128 is not divisible by n_head=3",
    "model.dropout=1": "model.dropout: invalid value 1",
    "optim.learning_rate=0": "optim.learning_rate: invalid value 0",
    "optim.learning_rate=nan": "optim.learning_rate: invalid value nan",
    "optim=adam": "optim: there is no 'adam'; did you mean adamw?",
    "precision=fp16": "precision: invalid value 'fp16'",
    "device=tpu": "device: invalid value 'tpu'",
    "seed=-1": "seed: invalid value -1",
    "stats.metrics=[act.rsm]": "stats.metrics: there is no 'act.rsm'; did you mean act.rms?",
    "data=text": "data.path: a value is needed; give data.path=…",
    "data.path=x.txt": "did you mean data=text data.path=FILE?",
    "data=text data.path=missing.txt": "data.path: missing.txt",
    "--config-dir missing": "--config-dir",
    "data=text data.path=a b.txt": "data.path: a b.txt: No such file",
    "norm": "'norm': cannot be read",
    "data.tokenizer=init_from": "also give init_from=…",
    "init_from=missing": "init_from: missing: no such folder",
}
SAMPLE = {
    "--prompt X": "write prompt=…",
    "promt=X": "promt: unknown key; did you mean prompt?",
    "run=missing": "missing: no such folder",
    "temperature=-1": "temperature: invalid value '-1'",
    "top_k=0": "top_k: invalid value '0'",
    "num_samples=many": "num_samples: invalid value 'many'",
    "run=a checkpoint=b": "give only one of them",
    "prompt": "write prompt=…",
    "": "has no run; train one",
}
PROGRAM = """
import os, runpy, sys
sys.argv = sys.argv[1:]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    assert "torch" not in sys.modules, "torch was imported"
"""


def run(program: str, words: list[str], folder) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", PROGRAM, str(ROOT / program), *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


def words_of(text: str) -> list[str]:
    return (
        text.split() if not text.startswith("data=text data.path=a b") else ["data=text", "data.path=a b.txt"]
    )


CASES = [("train.py", *each) for each in TRAIN.items()] + [("sample.py", *each) for each in SAMPLE.items()]


@pytest.mark.parametrize(("program", "arguments", "expected"), CASES)
def test_a_mistake_is_one_line(tmp_path, program, arguments, expected):
    (tmp_path / "text.txt").write_text(LETTERS, encoding="utf-8")
    done = run(program, words_of(arguments), tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    [line] = done.stderr.splitlines()
    assert LINE.fullmatch(line), line
    assert expected in line
    assert not [*tmp_path.glob("runs/*")]


def test_options_are_found_wherever_they_are_typed():
    words = ["norm=l1", "--config-dir", "mine", "-m", "seed=0,1"]
    assert arguments_for_hydra(words) == ["--config-dir", "mine", "-m", "norm=l1", "seed=0,1"]
    with pytest.raises(ConfigError, match="write seed=3"):
        arguments_for_hydra(["--seed", "3"])


def test_a_prompt_arrives_letter_by_letter(tmp_path):
    from cli.errors import CONF
    from cli.programs import read_literally
    from cli.schema import SampleConfig

    prompt = 'What\'s ${this}, [a=b] \\ "c"? null'
    before, sys.argv = sys.argv, ["sample.py", f"prompt={prompt}", "temperature=0.5", "top_k=null"]
    try:
        config = read_literally(SampleConfig, CONF / "sample.yaml", None)
    finally:
        sys.argv = before
    assert (config.prompt, config.temperature, config.top_k) == (prompt, 0.5, None)


def test_a_torch_that_cannot_be_imported_is_one_line(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('libgomp.so.1: no such file', name='torch')")
    (tmp_path / "text.txt").write_text(LETTERS, encoding="utf-8")
    command = [sys.executable, str(ROOT / "train.py"), "data=text", "data.path=text.txt", "data.cache=cache"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, env={"PYTHONPATH": str(tmp_path)}
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: torch: cannot be imported (libgomp.so.1")
