"""The acceptance matrix: for each fault what a program does, as its user sees it.

C: command line and config. D: data. K: checkpoint and resume. G: while it runs. P: sampling. A row is refused
in one line (see contract.py) or works as its function says. Faults that need several commands, signals or
kills have tests of their own: tests/test_resume.py and the other files of this folder.
"""

import itertools
import json
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import CompletedProcess
from typing import NamedTuple

import numpy as np
import pytest
import torch

from data.token_files import load
from rundir.folder import read_status
from tests.conftest import LETTERS, TRAIN, daily
from tests.helpers import programs
from tests.helpers.contract import check_kept, check_refused, contents
from tests.helpers.matrix_faults import (
    Fault,
    a_run_without_its_optimizer,
    after_a_run,
    changed_tensors,
    damaged_checkpoint,
    damaged_tokens,
    files,
    flip_a_bit,
    norm_file,
    text,
    without_optimizer,
)

CHECK = Callable[[CompletedProcess, Path], None]


class Row(NamedTuple):
    id: str
    arguments: Sequence[str] | Fault
    words: tuple[str, ...] = ()  # of the refusal
    works: CHECK | None = None  # checks what was done, if it is no refusal
    program: str = "train.py"


def refusals(id: str, *overrides: str, word: str = "", program: str = "train.py") -> list[Row]:
    """Return a row for each override. The refusal names its key, and has ``word`` in it."""
    return [Row(id, [arg], (arg.lstrip("+~").split("=")[0], word), program=program) for arg in overrides]


def sampling(id: str, arguments: Sequence[str] | Fault, *words: str, works: CHECK | None = None) -> Row:
    return Row(id, arguments, words, works, "sample.py")


# what works ---------------------------------------------------------------------------------------------


def succeeded(done: CompletedProcess, folder: Path) -> None:
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


def finished(done: CompletedProcess, folder: Path) -> None:
    succeeded(done, folder)
    assert [read_status(run).get("state") for run in folder.glob("runs/*-s*")] == ["finished"]


def finished_with_only_step(step: int) -> CHECK:
    def check(done: CompletedProcess, folder: Path) -> None:
        finished(done, folder)
        assert [f.name for f in folder.glob("runs/*/checkpoints/*")] == [f"step-{step:08}.safetensors"]

    return check


def diverged(done: CompletedProcess, folder: Path) -> None:
    succeeded(done, folder)
    assert "diverged" in done.stdout
    [run] = (folder / "runs").iterdir()
    status = read_status(run)
    assert status["state"] == "diverged"
    assert "first in " in status["reason"]


def failed(done: CompletedProcess, folder: Path) -> None:
    assert done.returncode != 0
    assert "Traceback" not in done.stdout + done.stderr


def another_run(done: CompletedProcess, folder: Path) -> None:
    succeeded(done, folder)
    assert "a new run" in done.stdout
    assert len([*folder.glob("runs/*-s*")]) == 2


def nothing_left_to_do(done: CompletedProcess, folder: Path) -> None:
    finished(done, folder)
    assert "nothing left to do" in done.stdout


def round_trip(done: CompletedProcess, folder: Path) -> None:
    """Check that the prepared tokens are the text, byte for byte."""
    finished(done, folder)
    [prepared] = [load(cache, verify=True) for cache in (folder / "cache").glob("text-*")]
    decoded = b"".join(prepared.tokenizer.decode(split) for split in (prepared.train, prepared.val))
    assert decoded == (folder / "text.txt").read_bytes()


def printed(text: str) -> CHECK:
    def check(done: CompletedProcess, folder: Path) -> None:
        succeeded(done, folder)
        assert done.stdout.startswith(text)

    return check


LAYERNORM = "_target_: model.norms.LayerNorm\n"
ODD_TEXT = "\ufeffbegin\0 e\u0301 \U0001f469\u200d\U0001f680 \u202e" * 30
CHARACTERS = "".join(chr(code) for code in range(0x20, 0x11000) if not 0xD800 <= code < 0xE000)
TOKENS = np.array([0, 1, 2, 9] * 50, np.uint16).tobytes()  # 9 is not in the vocabulary
BINS = {
    "bins/train.bin": TOKENS,
    "bins/val.bin": TOKENS,
    "bins/meta.json": json.dumps({"dtype": "uint16", "tokenizer": {"kind": "char", "chars": "abc"}}),
}
MATRIX = [
    # C: command line and config
    *refusals("C01", "optim.learning_rate=abc"),
    *refusals("C02", *(f"optim.learning_rate={bad}" for bad in ("nan", "inf", "-1", "0", "1e400"))),
    *refusals("C03", *(f"train.steps={bad}" for bad in ("1.5", "-1", "99999999999999999999"))),
    Row("C03", ["train.steps=0"], works=finished_with_only_step(0)),
    *refusals("C04", "train.stepz=1", word="train.steps"),
    *refusals("C04", "optim.lrr=1"),
    *refusals("C05", "+foo=1", "++foo=1", "+train.foo=1", "+norm.foo=1"),
    *refusals("C06", "~optim.learning_rate", "~train.steps", "~model.n_embd"),
    *refusals("C07", "norm=foo", word="batchnorm"),
    Row("C08", ["model.n_embd=130", "model.n_head=4"], ("model.n_embd", "not divisible")),
    *refusals("C09", "model.n_layer=0", "model.n_head=0", "model.n_embd=-8", "model.block_size=0"),
    *refusals("C09", "train.batch_size=0", "train.grad_accum=0"),
    *refusals("C10", *(f"model.dropout={bad}" for bad in ("1.0", "1.5", "-0.1", "nan"))),
    *refusals("C11", "optim.learning_rate=${optim.learning_rate}", "optim.learning_rate=${nope}"),
    Row("C12", ["optim.learning_rate=[1"], ("optim.learning_rate",)),
    Row("C12", ["optim.learning_rate==1"], ("learning_rate",)),
    Row("C12", ["--foo"], works=failed),
    Row("C13", ["-cn", "nope"], ("nope",)),
    Row("C13", ["--config-dir=/nope"], ("/nope",)),
    *refusals("C14", "norm.eps=0", "norm.eps=-1e-5", "norm.eps=nan", "norm.eps=abc"),
    *(Row("C14", ["norm=batchnorm", f"norm.momentum={m}"], ("norm.momentum",)) for m in (-0.1, 1.5, "nan")),
    *(
        Row("C14", [f"norm=torch_{norm}", "norm.eps=-1"], ("norm.eps",))
        for norm in ("layernorm", "batchnorm", "rmsnorm")
    ),
    *refusals("C15", "placement=mid", word="post, pre"),
    *refusals("C16", "device=cuda:99" if torch.cuda.is_available() else "device=cuda", "device=potato"),
    *refusals("C17", "precision=float16", "precision=int8", "precision=fp16"),
    *refusals("C18", "schedule.warmup_fraction=1.5", "schedule.final_fraction=2", "optim.beta2=1.0"),
    Row("C19", files({"taken": "a file"}, "runs_dir=taken"), ("taken",)),
    Row("C19", ["runs_dir=/proc/nope/x"], ("/proc/nope/x",)),
    Row("C19", ["runs_dir=missing/parent/runs"], works=succeeded),
    Row("C20", norm_file(f"{LAYERNORM}\teps: 1e-5\n"), ("odd.yaml", "line 2")),
    Row("C20", norm_file(f"{LAYERNORM}eps: 1e-5\neps: 1e-4\n"), ("odd.yaml", "line 3")),
    Row("C20", norm_file("_target_: [model.norms.LayerNorm\n"), ("odd.yaml", "line")),
    Row("C20", norm_file("just text\n"), ("norm._target_",)),
    Row("C21", ["train.checkpoint_every=0", "train.eval_every=0"], works=finished_with_only_step(6)),
    *refusals("C21", "train.checkpoint_every=-1", "train.eval_every=-3", "train.log_every=0"),
    *refusals("C22", "seed=-1", "seed=18446744073709551616", "seed=1.5", "seed=true"),
    Row("C22", ["seed=9223372036854775807"], works=finished),
    # D: data
    Row("D01", ["data=text", "data.path=nope.txt"], ("nope.txt",)),
    Row("D01", ["data=text", "data.path=nope/nope.txt"], ("nope/nope.txt",)),
    Row("D01", lambda folder: (folder / "texts").mkdir() or ["data.path=texts"], ("texts",)),
    Row("D01", ["data=text", "data.path=/proc/self/mem"], ("/proc/self/mem",)),
    Row("D02", text(""), ("0 characters",)),
    Row("D03", text("a"), ("model.block_size=8", "9")),
    Row("D04", text("abcdefg" * 2), ("validation split", "9")),
    Row("D04", text("abcdefg" * 2, "data.val_fraction=0.9"), ("training split", "9")),
    Row("D05", text(b"good\xff bad" * 30), ("offset 4", "0xff")),
    Row("D06", text("a line\r\nanother one\r\n" * 40), works=round_trip),
    Row("D07", text(ODD_TEXT), works=round_trip),
    Row("D07", text(ODD_TEXT, "data.tokenizer=bpe"), works=round_trip),
    Row("D08", text(Path(sys.executable).read_bytes()[: 2**20]), ("offset",)),
    Row("D09", damaged_tokens(lambda content: content[:-1]), ("train.bin",)),
    Row("D09", damaged_tokens(lambda content: content[: len(content) // 2]), ("train.bin",)),
    Row("D09", damaged_tokens(lambda content: b""), ("train.bin",)),
    Row("D10", damaged_tokens(lambda content: flip_a_bit(content, 50)), ("train.bin", "checksum")),
    Row("D11", files(BINS, "data=prepared", "data.path=bins"), ("token 9", "has 3")),
    Row(
        "D12",
        text(CHARACTERS * 2, "train.steps=0", "model.n_embd=4", "train.eval_windows=2"),
        works=round_trip,
    ),
    Row("D15", after_a_run(text=LETTERS[::-1]), works=another_run),
    # K: checkpoints. Another command is another run; the first is left as it is.
    *(
        Row("K08", after_a_run(other), works=another_run)
        for other in ("norm=batchnorm", "model.n_layer=1", "model.block_size=4", "data.tokenizer=bpe")
    ),
    *(
        Row("K09", after_a_run(other), works=another_run)
        for other in ("optim.learning_rate=1e-4", "train.batch_size=2", "seed=1")
    ),
    Row("K10", after_a_run("train.steps=9"), works=another_run),
    Row("K11", after_a_run(), works=nothing_left_to_do),
    Row("K19", a_run_without_its_optimizer, ("step-00000004", "optimizer")),
    # P: sampling, and what a checkpoint is not
    sampling("K06", damaged_checkpoint(lambda content: content[: len(content) // 2]), "bad.safetensors"),
    sampling("K06", damaged_checkpoint(lambda content: flip_a_bit(content, -100)), "bad.safetensors"),
    sampling("K18", changed_tensors(lambda t, name: t.pop(name)), "bad.safetensors"),
    sampling("K18", changed_tensors(lambda t, _: t.update(more=torch.zeros(3))), "bad.safetensors", "more"),
    sampling(
        "K18", changed_tensors(lambda t, name: t.update({name: t[name][:-1]})), "bad.safetensors", "shape"
    ),
    sampling(
        "K18", changed_tensors(lambda t, name: t.update({name: t[name].half()})), "bad.safetensors", "float16"
    ),
    sampling(
        "K19",
        changed_tensors(
            lambda t, _: [t.pop(name) for name in t.keys() - without_optimizer(t).keys()], "prompt=now"
        ),
        works=printed("now"),
    ),
    sampling("P01", ["prompt=now §"], "prompt", "'§'", "U+00A7", "position 4"),
    sampling("P02", ["prompt=", "max_new_tokens=5"], works=printed("\n")),
    sampling("P03", [f"prompt={LETTERS[:100]}", "max_new_tokens=5"], works=printed(LETTERS[:100])),
    sampling("P04", ["prompt=now", "temperature=0"], works=printed("now")),
    *refusals("P04", "temperature=-1", "temperature=nan", program="sample.py"),
    *refusals("P05", "top_k=0", "top_k=-3", "top_p=0", "top_p=1.1", program="sample.py"),
    sampling("P05", ["prompt=now", "top_k=100000"], works=printed("now")),
    *refusals("P06", "max_new_tokens=-1", "num_samples=0", program="sample.py"),
    sampling("P06", ["prompt=now", "max_new_tokens=0"], works=printed("now\n")),
    sampling("P07", ["checkpoint=nope.safetensors"], "nope.safetensors"),
    sampling("P07", ["run=cache"], "cache"),
    sampling("P07", ["run=nope"], "nope"),
    sampling("P08", damaged_checkpoint(lambda _: b"just text"), "bad.safetensors"),
    sampling("P08", damaged_checkpoint(lambda _: b"\x89PNG\r\n\x1a\n" + bytes(100)), "bad.safetensors"),
    sampling(
        "P11", changed_tensors(lambda t, name: t[name].fill_(torch.nan)), "bad.safetensors", "non-finite"
    ),
    # G: while it runs
    Row(
        "G06",
        ["optim.learning_rate=1e3", "norm=none", "train.steps=200", "train.grad_clip=0"],
        works=diverged,
    ),
]
IDS = [
    f"{id}-{number}"
    for id, group in itertools.groupby(MATRIX, lambda row: row.id)
    for number, _ in enumerate(group, 1)
]


def tier_of_others(number: int) -> str:
    return "slow" if number % 5 == 0 else "faults"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "text.txt").write_text(LETTERS, encoding="utf-8")
    done = programs.run("train.py", *TRAIN, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("row", daily(zip(MATRIX), lambda number: number % 15 == 0, tier_of_others), ids=IDS)
def test_the_row(row: Row, tmp_path: Path, text_file: Path, trained: Path) -> None:
    if row.program == "sample.py":
        shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    arguments = row.arguments(tmp_path) if callable(row.arguments) else row.arguments
    keys = {arg.split("=")[0] for arg in arguments}
    common = ("device=cpu",) if row.program == "sample.py" else TRAIN
    common = tuple(arg for arg in common if arg.split("=")[0] not in keys)
    before = contents(tmp_path)
    done = programs.run(row.program, *common, *arguments, cwd=tmp_path)
    if row.works:
        row.works(done, tmp_path)
        check_kept(before)
    else:
        check_refused(done, *row.words, before=before)
    assert not (tmp_path / "owned").exists()
