"""Wrong settings: one line, ``error: <where>: <what>; <what to do>``, with exit status 1; the nearest known
key is suggested; torch is not imported before what can be known without it."""

import json
import os
import subprocess
import sys

import pytest

from cli.compose import arguments_for_hydra
from cli.errors import CONF
from cli.programs import read_literally
from cli.schema import SampleConfig
from data.errors import ConfigError
from tests.conftest import LETTERS, ROOT
from tests.helpers.contract import check_refused

TRAIN = {  # arguments, with commas between them -> words of the line
    "trian.steps=3": "trian.steps: unknown key; did you mean train.steps?",
    "lr=1e-3": "did you mean optim.learning_rate?",
    "model.n_layers=3": "did you mean model.n_layer?",
    "norm.alpha=0.5": "norm.alpha: the chosen norm has no such key; leave it out",
    "--norm, layernorm": "--norm: write norm=layernorm",
    "--steps": "--steps: write steps=VALUE",
    "norm=layrnorm": "norm: there is no 'layrnorm'; did you mean layernorm?",
    "placement=inside": "placement: there is no 'inside'; choose one of",
    "model.qk_norm=layrnorm": "model.qk_norm: there is no 'layrnorm'; did you mean layernorm?",
    "norm=layernorm,none": "norm: several values; add -m",
    "train.steps=many": "train.steps: invalid value 'many'; it should be a valid integer",
    "train.batch_size=0": "train.batch_size: invalid value 0",
    "train.grad_accum=3": "train.batch_size: 32 is not divisible by grad_accum=3",
    "model.n_head=3": "model.n_embd: 128 is not divisible by n_head=3",
    "optim.learning_rate=nan": "optim.learning_rate: invalid value nan",
    "precision=fp16": "precision: invalid value 'fp16'",
    "seed=-1": "seed: invalid value -1",
    "stats.metrics=[act.rsm]": "stats.metrics: there is no 'act.rsm'; did you mean act.rms?",
    "data=text": "data.path: a value is needed; give data.path=…",
    "data=text, data.path=missing.txt": "data.path: missing.txt",
    "--config-dir, missing": "--config-dir",
    "data=text, data.path=a b.txt": "data.path: a b.txt: No such file",
    "norm": "'norm': cannot be read",
    "norm=1": "a group such as norm or model: the choice must be a name",
    "data.tokenizer=init_from": "also give init_from=…",
    "init_from=missing": "init_from: missing: no such folder",
}
SAMPLE = {
    "--prompt, X": "write prompt=…",
    "promt=X": "promt: unknown key; did you mean prompt?",
    "run=missing": "missing: no such folder",
    "temperature=-1": "temperature: invalid value '-1'",
    "top_k=0": "top_k: invalid value '0'",
    "run=a, checkpoint=b": "give only one of them",
    "prompt": "write prompt=…",
    "": "has no run; train one",
}
PROGRAM = """
import json, os, runpy, sys
import hydra, cli.compose, cli.schema  # once for all forks

for number, (program, words) in enumerate(json.load(sys.stdin)):
    os.mkdir(str(number))
    if not os.fork():
        os.chdir(str(number))
        for stream, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT), stream)
        sys.argv = [program, *words]
        try:
            runpy.run_path(program, run_name="__main__")
        finally:
            assert "torch" not in sys.modules, "torch was imported"
        raise SystemExit(0)
    with open(f"{number}/status", "w") as file:
        print(os.waitstatus_to_exitcode(os.wait()[1]), file=file)
"""


def test_a_mistake_is_one_line(tmp_path):
    cases = [("train.py", *each) for each in TRAIN.items()] + [
        ("sample.py", *each) for each in SAMPLE.items()
    ]
    typed = [(str(ROOT / program), [*filter(None, words.split(", "))]) for program, words, _ in cases]
    command, environ = [sys.executable, "-c", PROGRAM], os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run(command, input=json.dumps(typed), cwd=tmp_path, env=environ, text=True, check=True)
    for number, (program, words, expected) in enumerate(cases):
        status, out, err = ((tmp_path / f"{number}/{name}").read_text() for name in ("status", "out", "err"))
        assert len(err.splitlines()) == 1, err
        check_refused(subprocess.CompletedProcess((program, words), int(status), out, err), expected)
        assert not [*tmp_path.glob(f"{number}/runs/*")]


def test_options_are_found_wherever_they_are_typed():
    words = ["norm=l1", "--config-dir", "mine", "-m", "seed=0,1"]
    assert arguments_for_hydra(words) == ["--config-dir", "mine", "-m", "norm=l1", "seed=0,1"]
    with pytest.raises(ConfigError, match="write seed=3"):
        arguments_for_hydra(["--seed", "3"])


def test_a_prompt_arrives_letter_by_letter(monkeypatch):
    prompt = 'What\'s ${this}, [a=b] \\ "c"? null'
    monkeypatch.setattr(sys, "argv", ["sample.py", f"prompt={prompt}", "temperature=0.5", "top_k=null"])
    config = read_literally(SampleConfig, CONF / "sample.yaml", None)
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
