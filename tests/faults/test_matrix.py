"""The acceptance matrix: for each fault what a program does, as its user sees it.

C: command line and config. D: data. K: checkpoint and resume. G: signals and what happens while it runs.
P: sampling. A row is refused in one line (see contract.py) or works as its function says; those that need
more than one command are tests by themselves, and named in ELSEWHERE.
"""

import itertools
import shutil
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import CompletedProcess
from typing import NamedTuple

import pytest
import torch

from rundir.folder import read_status
from tests.conftest import LETTERS, TINY, daily
from tests.helpers import programs
from tests.helpers.contract import check_kept, check_refused, contents
from tests.helpers.matrix_faults import (
    TEXT,
    a_file_at,
    a_folder_as_text,
    a_run_without_its_optimizer,
    a_text,
    a_wrong_file,
    after_a_run,
    an_elf,
    flipped,
    foreign,
    halved,
    many_characters,
    pickled,
    prepared_then,
    sampled_from,
    some_matrix,
    too_large_a_token,
    written_anew,
)

CHECK = Callable[[CompletedProcess, Path], None]


class Row(NamedTuple):
    id: str
    arguments: Sequence[str] | Callable[[Path], Sequence[str]]  # what makes the fault returns them, too
    says: tuple[str, ...] = ()  # words of the refusal
    works: CHECK | None = None  # looks at what was done, where it is no refusal
    program: str = "train.py"


def rows_of(id: str, *many: str, says: str = "") -> list[Row]:
    """A row for each override; the refusal names its key, and says ``says``."""
    return [Row(id, [one], tuple(filter(None, (one.lstrip("+~").split("=")[0], says)))) for one in many]


# what works ---------------------------------------------------------------------------------------------


def finished(done: CompletedProcess, folder: Path) -> None:
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    states = [read_status(run).get("state") for run in (folder / "runs").iterdir() if "-s" in run.name]
    assert states == ["finished"]


def finished_at_step_0(done: CompletedProcess, folder: Path) -> None:
    finished(done, folder)
    assert [file.name for file in folder.glob("runs/*/checkpoints/*")] == ["step-00000000.safetensors"]


def finished_with_one_checkpoint(done: CompletedProcess, folder: Path) -> None:
    finished(done, folder)
    assert [file.name for file in folder.glob("runs/*/checkpoints/*")] == ["step-00000006.safetensors"]


def diverged(done: CompletedProcess, folder: Path) -> None:
    assert done.returncode == 0, done.stderr
    assert "diverged" in done.stdout
    [run] = (folder / "runs").iterdir()
    status = read_status(run)
    assert status["state"] == "diverged"
    assert "first in " in status["reason"]


def succeeded(done: CompletedProcess, folder: Path) -> None:
    assert done.returncode == 0, done.stderr


def failed(done: CompletedProcess, folder: Path) -> None:
    assert done.returncode != 0
    assert "Traceback" not in done.stdout + done.stderr


def another_run(done: CompletedProcess, folder: Path) -> None:
    assert done.returncode == 0, done.stderr
    assert "a new run" in done.stdout
    assert len([*folder.glob("runs/*-s*")]) == 2


def nothing_left_to_do(done: CompletedProcess, folder: Path) -> None:
    finished(done, folder)
    assert "nothing left to do" in done.stdout


def round_trip(done: CompletedProcess, folder: Path) -> None:
    """What was prepared is the text, byte for byte."""
    from data.token_files import load

    finished(done, folder)
    [prepared] = [load(found, verify=True) for found in (folder / "cache").glob("text-*")]
    text = b"".join(prepared.tokenizer.decode(split) for split in (prepared.train, prepared.val))
    assert text == (folder / "text.txt").read_bytes()


def printed(text: str) -> CHECK:
    def check(done: CompletedProcess, folder: Path) -> None:
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(text)
        assert "Traceback" not in done.stderr

    return check


MATRIX = [
    # C: command line and config
    *rows_of("C01", "optim.learning_rate=abc"),
    *rows_of("C02", *(f"optim.learning_rate={bad}" for bad in ("nan", "inf", "-1", "0", "1e400"))),
    *rows_of("C03", *(f"train.steps={bad}" for bad in ("1.5", "-1", "99999999999999999999"))),
    Row("C03", ["train.steps=0"], works=finished_at_step_0),
    *rows_of("C04", "train.stepz=1", says="train.steps"),
    *rows_of("C04", "optim.lrr=1"),
    *rows_of("C05", "+foo=1", "++foo=1", "+train.foo=1", "+norm.foo=1"),
    *rows_of("C06", "~optim.learning_rate", "~train.steps", "~model.n_embd"),
    *rows_of("C07", "norm=foo", says="batchnorm"),
    Row("C08", ["model.n_embd=130", "model.n_head=4"], ("model.n_embd", "not divisible")),
    *rows_of("C09", "model.n_layer=0", "model.n_head=0", "model.n_embd=-8", "model.block_size=0"),
    *rows_of("C09", "train.batch_size=0", "train.grad_accum=0"),
    *rows_of("C10", *(f"model.dropout={bad}" for bad in ("1.0", "1.5", "-0.1", "nan"))),
    *rows_of("C11", "optim.learning_rate=${optim.learning_rate}", "optim.learning_rate=${nope}"),
    Row("C12", ["optim.learning_rate=[1"], ("optim.learning_rate",)),
    Row("C12", ["optim.learning_rate==1"], ("learning_rate",)),
    Row("C12", ["--foo"], works=failed),
    Row("C13", ["-cn", "nope"], ("nope",)),
    Row("C13", ["--config-dir=/nope"], ("/nope",)),
    *rows_of("C14", "norm.eps=0", "norm.eps=-1e-5", "norm.eps=nan", "norm.eps=abc"),
    *(
        Row("C14", ["norm=batchnorm", f"norm.momentum={bad}"], ("norm.momentum",))
        for bad in ("-0.1", "1.5", "nan")
    ),
    *(
        Row("C14", [f"norm=torch_{norm}", "norm.eps=-1"], ("norm.eps",))
        for norm in ("layernorm", "batchnorm", "rmsnorm")
    ),
    *rows_of("C15", "placement=mid", says="post, pre"),
    Row("C16", ["device=cuda"], ("device", "cpu"))
    if not torch.cuda.is_available()
    else Row("C16", ["device=cuda:99"], ("device", "99")),
    *rows_of("C16", "device=potato"),
    *rows_of("C17", "precision=float16", "precision=int8", "precision=fp16"),
    *rows_of("C18", "schedule.warmup_fraction=1.5", "schedule.final_fraction=2", "optim.beta2=1.0"),
    Row("C19", a_file_at("taken"), ("taken",)),
    Row("C19", ["runs_dir=/proc/nope/x"], ("/proc/nope/x",)),
    Row("C19", ["runs_dir=missing/parent/runs"], works=succeeded),
    Row("C20", a_wrong_file("_target_: model.norms.LayerNorm\n\teps: 1e-5\n"), ("odd.yaml", "line 2")),
    Row(
        "C20", a_wrong_file("_target_: model.norms.LayerNorm\neps: 1e-5\neps: 1e-4\n"), ("odd.yaml", "line 3")
    ),
    Row("C20", a_wrong_file("_target_: [model.norms.LayerNorm\n"), ("odd.yaml", "line")),
    Row("C20", a_wrong_file("just text\n"), ("norm._target_",)),
    Row("C21", ["train.checkpoint_every=0", "train.eval_every=0"], works=finished_with_one_checkpoint),
    *rows_of("C21", "train.checkpoint_every=-1", "train.eval_every=-3", "train.log_every=0"),
    *rows_of("C22", "seed=-1", "seed=18446744073709551616", "seed=1.5", "seed=true"),
    Row("C22", ["seed=9223372036854775807"], works=finished),
    # D: data
    Row("D01", ["data=text", "data.path=nope.txt"], ("nope.txt",)),
    Row("D01", ["data=text", "data.path=nope/nope.txt"], ("nope/nope.txt",)),
    Row("D01", a_folder_as_text, ("texts",)),
    Row("D01", ["data=text", "data.path=/proc/self/mem"], ("/proc/self/mem",)),
    Row("D02", a_text(""), ("0 characters",)),
    Row("D03", a_text("a"), ("model.block_size=8", "9")),
    Row("D04", a_text("abcdefg" * 2), ("validation split", "9")),
    Row("D04", a_text("abcdefg" * 2, "data.val_fraction=0.9"), ("training split", "9")),
    Row("D05", a_text(b"good\xff bad" * 30), ("offset 4", "0xff")),
    Row("D06", a_text("a line\r\nanother one\r\n" * 40), works=round_trip),
    Row("D07", a_text("\ufeffbegin\0 e\u0301 \U0001f469\u200d\U0001f680 \u202e" * 30), works=round_trip),
    Row("D07", a_text("\ufeffbegin\0 e\u0301 \U0001f469\u200d" * 30, "data.tokenizer=bpe"), works=round_trip),
    Row("D08", an_elf, ("offset",)),
    Row("D09", prepared_then(lambda content: content[:-1]), ("train.bin",)),
    Row("D09", prepared_then(lambda content: content[: len(content) // 2]), ("train.bin",)),
    Row("D09", prepared_then(lambda content: b""), ("train.bin",)),
    Row(
        "D10", prepared_then(lambda content: content[:50] + bytes([content[50] ^ 1]) + content[51:]), ("SHA",)
    ),
    Row("D11", too_large_a_token, ("token 9", "has 3")),
    Row("D12", many_characters, works=round_trip),
    Row("D15", after_a_run(text=LETTERS[::-1]), works=another_run),
    # K: checkpoints. Of another command there is another run; the first is left as it is.
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
    # P: sampling, and what a checkpoint is not
    Row("K06", sampled_from(halved), ("bad.safetensors",), program="sample.py"),
    Row("K06", sampled_from(flipped), ("bad.safetensors",), program="sample.py"),
    Row(
        "K18",
        sampled_from(written_anew(lambda t: t.pop(some_matrix(t)) is None)),
        ("bad.safetensors",),
        program="sample.py",
    ),
    Row(
        "K18",
        sampled_from(written_anew(lambda t: t.update(more=torch.zeros(3)))),
        ("bad.safetensors", "more"),
        program="sample.py",
    ),
    Row(
        "K18",
        sampled_from(written_anew(lambda t: t.update({some_matrix(t): t[some_matrix(t)][:-1]}))),
        ("bad.safetensors", "shape"),
        program="sample.py",
    ),
    Row(
        "K18",
        sampled_from(written_anew(lambda t: t.update({some_matrix(t): t[some_matrix(t)].half()}))),
        ("bad.safetensors", "float16"),
        program="sample.py",
    ),
    Row(
        "K19",
        sampled_from(
            written_anew(lambda t: [t.pop(name) for name in [*t] if name.startswith("optimizer")] and None),
            "prompt=now",
            "max_new_tokens=3",
        ),
        works=printed("now"),
        program="sample.py",
    ),
    Row("K19", a_run_without_its_optimizer, ("step-00000004", "optimizer")),
    Row("P01", ["prompt=now §"], ("prompt", "'§'", "U+00A7", "position 4"), program="sample.py"),
    Row("P02", ["prompt=", "max_new_tokens=5"], works=printed("\n"), program="sample.py"),
    Row(
        "P03",
        [f"prompt={LETTERS[:100]}", "max_new_tokens=5"],
        works=printed(LETTERS[:100]),
        program="sample.py",
    ),
    Row("P04", ["prompt=now", "temperature=0"], works=printed("now"), program="sample.py"),
    *(row._replace(program="sample.py") for row in rows_of("P04", "temperature=-1", "temperature=nan")),
    *(
        row._replace(program="sample.py")
        for row in rows_of("P05", "top_k=0", "top_k=-3", "top_p=0", "top_p=1.1")
    ),
    Row("P05", ["prompt=now", "top_k=100000"], works=printed("now"), program="sample.py"),
    *(row._replace(program="sample.py") for row in rows_of("P06", "max_new_tokens=-1", "num_samples=0")),
    Row("P06", ["prompt=now", "max_new_tokens=0"], works=printed("now\n"), program="sample.py"),
    Row("P07", ["checkpoint=nope.safetensors"], ("nope.safetensors",), program="sample.py"),
    Row("P07", ["run=cache"], ("cache",), program="sample.py"),
    Row("P07", ["run=nope"], ("nope",), program="sample.py"),
    *(
        Row("P08", sampled_from(foreign(content)), ("bad.safetensors",), program="sample.py")
        for content in (
            b"just text",
            b"\x89PNG\r\n\x1a\n" + bytes(100),
            b"",
            struct.pack("<Q", 2**63) + b"{}",
        )
    ),
    Row("P08", sampled_from(pickled), ("bad.safetensors",), program="sample.py"),
    Row("P09", sampled_from(pickled), ("bad.safetensors",), program="sample.py"),
    Row(
        "P11",
        sampled_from(written_anew(lambda t: t[some_matrix(t)].fill_(float("nan")) is None)),
        ("bad.safetensors", "non-finite"),
        program="sample.py",
    ),
    # G: while it runs
    Row(
        "G06",
        ["optim.learning_rate=1e3", "norm=none", "train.steps=200", "train.grad_clip=0"],
        works=diverged,
    ),
]
# Rows of several commands, or of signals, are tests by themselves.
ELSEWHERE = {
    "tests/faults/test_many.py": {
        "D13": "test_a_preparation_that_is_killed_leaves_nothing_that_is_used",
        "D14": "test_some_that_prepare_one_text_at_once_end_with_one_dataset",
    },
    "tests/data/test_tokenizers.py": {
        "D16": "test_without_either_the_error_says_what_to_install",
    },
    "tests/faults/test_long_run.py": {
        "D17": "test_a_line_of_200_mb_is_a_text",
    },
    "tests/faults/test_kill.py": {
        "K01": "test_so_does_one_of_200",
        "K20": "test_a_killed_run_has_no_unreadable_checkpoint_and_ends_with_the_same_bits",
    },
    "tests/faults/test_failpoints.py": {
        "K02": "test_so_does_one_that_dies_at_any",
        "K14": "test_so_does_one_that_dies_at_any",
    },
    "tests/test_resume.py": {
        "K03": "test_a_damaged_checkpoint_is_passed_over_with_one_warning_and_kept",
        "K04": "test_a_damaged_checkpoint_is_passed_over_with_one_warning_and_kept",
        "K05": "test_where_every_checkpoint_is_damaged_nothing_is_touched",
        "K07": "test_a_run_killed_before_its_first_checkpoint_starts_over_and_says_so",
        "K12": "test_going_on_in_another_environment_is_said_once_and_recorded",
        "K13": "test_a_compiled_run_is_resumed_to_the_same_bits_too",
        "K17": "test_a_second_process_is_refused_while_one_trains_and_not_after_it_was_killed",
        "G04": "test_a_signal_is_heard_within_an_evaluation",
        "G05": "test_a_signal_ends_a_sweep_and_the_same_sweep_goes_on",
    },
    "tests/rundir/test_checkpoint_file.py": {
        "K15": "test_what_cannot_be_removed_is_told_of_and_the_save_holds",
    },
    "tests/faults/test_full.py": {
        "K16": "test_a_disk_that_fills_up_is_one_line_and_the_checkpoint_before_is_good",
        "G08": "test_a_model_that_does_not_fit_into_memory_is_said_before_anything_is_written",
    },
    "tests/faults/test_signals.py": {
        "G01": "test_a_hundred_signals_at_random_moments",
        "G02": "test_a_second_ctrl_c_does_not_wait_for_a_save",
        "G03": "test_a_hundred_signals_at_random_moments",
    },
    "tests/faults/test_not_finite.py": {
        "G07": "test_what_is_not_finite_is_caught_in_its_step_and_named",
    },
    "tests/faults/test_same.py": {
        "G09": "test_a_reader_that_goes_ends_no_run",
    },
    "tests/rundir/test_wandb.py": {
        "G11": "test_without_wandb_auto_is_one_line_and_another_mode_an_error",
    },
    "tests/rundir/test_wandb_faults.py": {
        "G10": "test_a_fault_of_wandb_costs_seconds_and_one_line_and_changes_no_bit",
        "G12": "test_wandb_killed_or_stopped_in_the_middle_costs_one_line",
    },
    "tests/sweep/test_runner.py": {
        "G13": "test_bad_jobs_are_named_and_the_others_finish",
        "G14": "test_a_killed_sweep_resumes_to_the_same_losses",
    },
    "tests/test_sample.py": {
        "P10": "test_the_command_prints_the_prompt_and_as_many_tokens_as_asked",
        "P12": "test_the_command_prints_the_prompt_and_as_many_tokens_as_asked",
    },
}
KINDS = {"C": 22, "D": 17, "K": 20, "G": 14, "P": 12}
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
    done = programs.run("train.py", *TEXT, *TINY, "data.cache=cache", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_row_of_the_matrix_has_its_test():
    ids = {f"{kind}{number:02}" for kind, most in KINDS.items() for number in range(1, most + 1)}
    assert {row.id for row in MATRIX}.union(*ELSEWHERE.values()) == ids
    for file, rows in ELSEWHERE.items():
        text = (programs.ROOT / file).read_text(encoding="utf-8")
        assert [name for name in rows.values() if f"def {name}(" not in text] == []


@pytest.mark.parametrize("row", daily(zip(MATRIX), lambda number: number % 15 == 0, tier_of_others), ids=IDS)
def test_the_row(row: Row, tmp_path: Path, text_file: Path, trained: Path) -> None:
    if row.program == "sample.py":
        shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    given = row.arguments(tmp_path) if callable(row.arguments) else row.arguments
    common = ("device=cpu",) if row.program == "sample.py" else (*TEXT, *TINY, "data.cache=cache")
    common = tuple(one for one in common if one.split("=")[0] not in {arg.split("=")[0] for arg in given})
    before = contents(tmp_path)
    done = programs.run(row.program, *common, *given, cwd=tmp_path)
    if row.works:
        row.works(done, tmp_path)
        check_kept(before)
    else:
        check_refused(done, *row.says, before=before)
    assert not (tmp_path / "owned").exists()
