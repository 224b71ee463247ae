"""Mistakes as their user meets them: each is refused in one line (helpers/contract.py), and nothing is lost.

Here is each kind of mistake; all values that a key refuses are in tests/cli/test_schema.py. Files that are
damaged or a stranger's, and runs that end otherwise, have tests of their own.
"""

import shutil
from pathlib import Path

import pytest
import torch

from rundir.folder import read_status
from tests.conftest import LETTERS, NORMS, TRAIN, daily, some_slow
from tests.helpers import programs
from tests.helpers.contract import check_refused, contents

SAMPLE = ("device=cpu",)
NO_CUDA = "device=cuda:99" if torch.cuda.is_available() else "device=cuda"
# Arguments, and what is in the line.
OF_HYDRA = [
    (["optim.learning_rate=[1"], "'optim.learning_rate=[1': cannot be read"),
    (["optim.learning_rate==1"], "learning_rate"),
    (["optim.learning_rate=${nope}"], "optim.learning_rate: "),
    (["optim.learning_rate=${optim.learning_rate}"], "optim.learning_rate: "),
    (["train.stepz=1"], "train.stepz: unknown key; did you mean train.steps?"),
    (["norm.epss=3"], "norm.epss: unknown key; did you mean norm.eps?"),
    (["model.qk_norm.eps=1"], "model.qk_norm.eps: unknown key; did you mean model.qk_norm?"),
    (["finding=warm_up"], "finding: unknown key; a finding is measured by python -m findings NAME"),
    (["norm=nope"], f"norm: there is no 'nope'; did you mean none? All: {', '.join(NORMS)}"),
    (["placement=mid"], "post, pre"),
    (["stats=most"], "stats: there is no 'most'; choose one of all, default"),
    (["norm=null"], "group"),
    (["seed=1,2"], "seed=1,2: several values; add -m"),
    (["-cn", "nope"], "nope"),
    (["--config-dir=/nope"], "/nope"),
]
OF_A_RUN = [
    (["train.steps=abc"], "train.steps: invalid value 'abc'; it should be a valid integer"),
    (["+norm.foo=1"], "norm.foo: "),
    (["norm=torch_batchnorm", "norm.eps=-1"], "norm.eps: "),
    ([NO_CUDA], "device: "),
    (["runs_dir=/proc/nope/x"], "/proc/nope/x"),
    (["runs_dir=text.txt"], "text.txt"),
    (["data.cache=/dev/null/x"], "data.cache: /dev/null/x: "),
    (["data.path=???"], "data.path: a value is needed"),
    (["data.path=nope/nope.txt"], "nope/nope.txt"),
    (["data.path=a\x1b[31m\nb"], r"data.path: a\x1b[31m\nb: No such file"),
    (["data.path=/proc/self/mem"], "/proc/self/mem"),
]
OF_A_SAMPLE = [
    (["promt=x"], "promt: unknown key; did you mean prompt?"),
    (["prompt=now §"], "prompt: character '§' (U+00A7) at position 4"),
    (["prompt_file=nowhere"], "nowhere: No such file"),
    (["temperature=-1"], "temperature: "),
    (["temperature=nan"], "temperature: "),
    (["top_k=0"], "top_k: "),
    (["top_p=0"], "top_p: "),
    (["top_p=1.1"], "top_p: "),
    (["max_new_tokens=-1"], "max_new_tokens: "),
    (["num_samples=0"], "num_samples: "),
    (["checkpoint=nope.safetensors"], "nope.safetensors: no such checkpoint"),
    (["checkpoint=text.txt"], "text.txt"),
    (["run=cache"], "cache: has no checkpoint"),
    (["runs_dir=nope"], "runs_dir: nope has no run"),
    (["run=a", "checkpoint=b"], "run: checkpoint= also names a model to load"),
]
CASES = [
    *(("train.py", *case) for case in (*OF_HYDRA, *OF_A_RUN)),
    *(("sample.py", *case) for case in OF_A_SAMPLE),
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "text.txt").write_text(LETTERS, encoding="utf-8")
    programs.succeed("train.py", *TRAIN, cwd=folder)
    return folder


@pytest.mark.parametrize(
    ("program", "arguments", "line"), daily(CASES, lambda number: number % 12 == 0, some_slow), ids=repr
)
def test_a_mistake_is_one_line(program, arguments, line, tmp_path, text_file, trained):
    if program == "sample.py":
        shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    keys = {argument.split("=")[0] for argument in arguments}
    common = [arg for arg in (TRAIN if program == "train.py" else SAMPLE) if arg.split("=")[0] not in keys]
    before = contents(tmp_path)
    check_refused(programs.run(program, *common, *arguments, cwd=tmp_path), line, before=before)
    assert contents(tmp_path).keys() - before.keys() <= {*tmp_path.glob("cache/**/*")}


LAYERNORM = "_target_: model.norms.LayerNorm\n"
WRONG_FILES = [
    ("mine/norm/odd.yaml", f"{LAYERNORM}\teps: 1e-5\n", "line 2"),
    ("mine/norm/odd.yaml", f"{LAYERNORM}eps: 1e-5\neps: 1e-4\n", "line 3"),
    ("mine/norm/odd.yaml", "_target_: [model.norms.LayerNorm\n", "odd.yaml"),
    ("mine/norm/odd.yaml", "just text\n", "norm._target_"),
    ("text.txt", "", "has no characters"),
    ("text.txt", "too short", "the training split has 8 tokens, but model.block_size=8 needs at least 9"),
    ("text.txt", "abcdefg" * 2, "validation split"),
    ("text.txt", b"good\xff bad" * 30, "byte 0xff at offset 4"),
]


@pytest.mark.parametrize(("name", "content", "word"), daily(WRONG_FILES, others=some_slow), ids=repr)
def test_a_mistake_in_a_file_is_one_line(name, content, word, tmp_path, text_file):
    (tmp_path / "mine/norm").mkdir(parents=True)
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    chosen = ("--config-dir=mine", "norm=odd") if name != "text.txt" else ()
    before = contents(tmp_path)
    check_refused(programs.run("train.py", *TRAIN, *chosen, cwd=tmp_path), word, before=before)


@pytest.mark.slow
def test_what_is_at_the_edge_of_the_allowed_is_a_run(tmp_path, text_file):
    edge = ("seed=9223372036854775807", "runs_dir=missing/parent/runs", "train.eval_every=0")
    programs.succeed("train.py", *TRAIN, *edge, "train.checkpoint_every=0", cwd=tmp_path)
    [run] = tmp_path.glob("missing/parent/runs/*-s*")
    assert read_status(run)["state"] == "finished"
    assert [file.name for file in run.glob("checkpoints/*")] == ["step-00000006.safetensors"]
