"""Several ranks train the same run as a single process does."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from data.token_cache import prepare
from rundir import checkpoint_file
from rundir.folder import read_status
from rundir.run_files import read_json
from tests.conftest import TINY, daily
from tests.helpers import rank_program
from tests.helpers.contract import error_lines
from tests.helpers.programs import PATIENCE, ROOT, Program, succeed
from tests.helpers.runs import rows_without_clocks
from tests.helpers.waiting import until
from training import device
from training.batches import Batches
from training.parallel.ranks import Ranks

CARD = ("batchnorm", "layernorm", "torch_layernorm", "none")
MORE = ("train.steps=50", "train.batch_size=8", "train.eval_every=25", "model.dropout=0", "stats=all")


@pytest.fixture
def arguments(text_file):
    return [*TINY, *MORE, "data=text", f"data.path={text_file}"]


def rows_of(folder: Path) -> list[dict]:
    [run] = folder.glob("runs/*-*")
    return rows_without_clocks(run)


def assert_alike(rows: list[dict], expected_rows: list[dict], rel: float = 1e-4) -> None:
    """Compare all numbers of two runs' rows; of leaks, only whether they are 0."""
    assert [row["step"] for row in rows] == [row["step"] for row in expected_rows]
    for row, expected in zip(rows, expected_rows, strict=True):
        assert row.keys() == expected.keys()
        for key, value in row.items():
            if isinstance(value, dict):
                assert sum(value["counts"]) == sum(expected[key]["counts"])
            elif key.startswith("leak."):
                assert (value == 0) == (expected[key] == 0)
            elif isinstance(value, str):  # "NaN", such as in rezero's branches at the start
                assert value == expected[key]
            else:
                assert value == pytest.approx(expected[key], rel=rel, abs=1e-6), (row["step"], key)


REPLICAS = [(f"norm={norm}", "placement=pre", count, "ddp") for norm in CARD for count in (2, 4)]
# scalenorm, dyt and rezero have parameters of one number
SHARDS = [
    (f"norm={norm}", f"placement={placement}", count, "fsdp")
    for norm, placement, count in (
        *(("scalenorm", "rezero", 2), ("batchnorm", "pre", 2), ("layernorm", "post", 4), ("dyt", "peri", 2)),
    )
]


EVERY_DAY = {0, len(REPLICAS)}


@pytest.mark.parametrize(
    ("norm", "placement", "count", "kind"), daily((*REPLICAS, *SHARDS), EVERY_DAY.__contains__)
)
def test_several_ranks_train_the_run_of_one_process(arguments, tmp_path, norm, placement, count, kind):
    arguments = [*arguments, norm, placement, f"train.grad_accum={4 // count}"]
    for folder in (alone := tmp_path / "alone", shared := tmp_path / "shared"):
        folder.mkdir()
    succeed("train.py", *arguments, cwd=alone)
    ended = rank_program.trained(count, *arguments, f"distributed={kind}", cwd=shared)
    assert [status for status, _, _ in ended] == [0] * count
    assert all(output == "" and errors == "" for _, output, errors in ended[1:])
    rows, expected = rows_of(shared), rows_of(alone)
    assert rows[0]["train/loss"] == pytest.approx(expected[0]["train/loss"], rel=1e-6)
    assert_alike(rows, expected)


def test_each_rank_and_micro_batch_has_its_own_dropout_masks(tiny):
    config = tiny("train.grad_accum=2")
    tokens, compute = prepare(**config.data.model_dump()), device.choose("cpu", "fp32")
    ranks = [Batches(config, tokens, compute, Ranks(rank, 2)) for rank in (0, 1)]
    assert len({batch.dropout_seed for batches in ranks for batch in batches.micro_batches(0)}) == 4


@pytest.mark.slow
def test_a_rank_may_have_no_sequence_whose_attention_is_observed(arguments, tmp_path):
    """The first 8 sequences all belong to rank 0."""
    ended = rank_program.trained(2, *arguments, "train.batch_size=32", "train.steps=2", cwd=tmp_path)
    assert [status for status, _, _ in ended] == [0, 0]
    assert {"attn.max_logit/00.attn", "attn.entropy/00.attn"} <= rows_of(tmp_path)[0].keys()


def until_saved(folder: Path, step: int, programs: Sequence[Program] = ()) -> None:
    """Wait until a run of the folder has saved this step; fail at once if a program has ended before."""

    def is_saved() -> bool:
        runs = folder.glob("runs/*-*")
        if any(checkpoint_file.saved_steps(run / "checkpoints")[-1:] >= [step] for run in runs):
            return True
        assert [program.poll() for program in programs] == [None] * len(programs), "a program has ended"
        return False

    until(is_saved)


@pytest.fixture
def longer(arguments, tmp_path):
    """Return the arguments of a run to interrupt, its folder, and the rows of the uninterrupted run."""
    arguments = [*arguments, *(f"train.{key}" for key in ("steps=60", "checkpoint_every=5", "eval_every=30"))]
    arguments += ["norm=batchnorm", "placement=rezero"]
    for folder in (alone := tmp_path / "alone", shared := tmp_path / "shared"):
        folder.mkdir()
    succeed("train.py", *arguments, cwd=alone)
    return arguments, shared, rows_of(alone)


@pytest.mark.slow
def test_a_run_is_resumed_by_more_ranks_by_fewer_and_in_shards(longer):
    arguments, folder, expected = longer
    parts = ((1, "ddp", 5, 143), (2, "fsdp", 20, 130), (2, "ddp", 35, 143))
    for count, kind, stop_at, status in parts:
        programs = rank_program.started(count, *arguments, f"distributed={kind}", cwd=folder)
        until_saved(folder, stop_at, programs)
        programs[-1].send_signal(status - 128)  # one rank receives the signal, all ranks end
        statuses = [(program.communicate(), program.wait())[1] for program in programs]
        assert statuses == [status] * count
    last = succeed("train.py", *arguments, cwd=folder)
    assert "ranks 2 → 1" in last.stdout
    assert_alike(rows_of(folder), expected, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_rank_that_waits_for_the_others(arguments, tmp_path, number):
    environment, _ = rank_program.environments(2)
    waiting = Program("train.py", *arguments, cwd=tmp_path, TEST_PATIENCE="1", **environment)
    assert waiting.stdout.readline().startswith("rank 0 of 2 waits for the others, for ")
    waiting.send_signal(number)
    assert waiting.wait(timeout=PATIENCE) in (-number, 128 + number)


def torchrun(count: int, *arguments: str, cwd: Path, restarts: int = 0) -> subprocess.Popen:
    started = (f"--nproc_per_node={count}", f"--max-restarts={restarts}", "--monitor-interval=0.1")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", *started]
    command += [ROOT / "train.py", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=cwd, stdout=pipe, stderr=pipe, text=True)


def ended(process: subprocess.Popen) -> tuple[str, str]:
    """Return what the process prints until it ends, within a minute."""
    try:
        return process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.terminate()  # and its ranks with it
        raise


def ranks_of(process: int) -> list[int]:
    import psutil

    children = psutil.Process(process).children(recursive=True)
    return [child.pid for child in children if any(part.endswith("train.py") for part in child.cmdline())]


@pytest.mark.slow
@pytest.mark.parametrize("kind", daily(("ddp", "fsdp")))
def test_when_a_rank_is_killed_all_end_with_one_message_and_the_run_resumes(longer, kind):
    arguments, folder, expected = longer
    arguments = [*arguments, f"distributed={kind}"]
    with torchrun(2, *arguments, cwd=folder) as process:
        until_saved(folder, 5)
        victim = ranks_of(process.pid)[1]
        os.kill(victim, signal.SIGKILL)
        began = time.monotonic()
        _, err = ended(process)
        assert time.monotonic() - began < 30
    assert process.returncode == 1
    assert error_lines(err) == [
        "error: another rank has ended; the same command resumes from the newest checkpoint"
    ]
    [run_folder] = (folder / "runs").glob("*-*")
    assert read_status(run_folder)["state"] == "failed"
    assert rank_program.trained(2, *arguments, cwd=folder)[0][0] == 0
    assert_alike(rows_of(folder), expected, rel=1e-3)


@pytest.mark.faults
def test_torchrun_restarts_a_killed_rank(arguments, tmp_path):
    more = [*arguments, "train.steps=60", "train.checkpoint_every=5"]
    with torchrun(2, *more, cwd=tmp_path, restarts=1) as process:
        until_saved(tmp_path, 5)
        os.kill(ranks_of(process.pid)[0], signal.SIGKILL)
        output, _ = ended(process)
    assert process.returncode == 0
    assert "resuming from step" in output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ("norm=nonorm", "norm: there is no 'nonorm'"),
        ("data.path=nowhere", "data.path: nowhere"),
        ("train.batch_size=5", "cannot be shared by 2 ranks"),
        ("-m", "torchrun is for one run"),
        ("device=cuda:1", "is one GPU for 2 ranks"),
        ("model.n_head=3", "is not divisible"),
        (("distributed=fsdp", "optim=muon"), "distributed: fsdp shards every matrix"),
    ],
)
def test_a_mistake_is_reported_once(arguments, tmp_path, mistake, message):
    mistake = (mistake,) if isinstance(mistake, str) else mistake
    ended = rank_program.trained(2, *arguments, *mistake, cwd=tmp_path)
    assert all(status != 0 for status, _, _ in ended)
    [error] = error_lines("".join(errors for _, _, errors in ended))
    assert message in error
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_a_finished_run_is_reported_once(arguments, tmp_path):
    first = rank_program.trained(2, *arguments, cwd=tmp_path)
    again = rank_program.trained(2, *arguments, cwd=tmp_path)
    assert [status for status, _, _ in first + again] == [0] * 4
    assert "nothing left to do" in again[0][1]
    assert again[1][1:] == ("", "")
    alone = rank_program.trained(1, *arguments, cwd=tmp_path)
    assert "nothing left to do (fresh=true starts over); it was trained by 2 ranks, not 1" in alone[0][1]


@pytest.mark.slow
def test_without_sync_each_rank_takes_its_own_statistics(arguments, tmp_path):
    results = {}
    for sync in ("true", "false"):
        (folder := tmp_path / sync).mkdir()
        settings = [*arguments, "norm=batchnorm", f"norm.sync={sync}"]
        assert rank_program.trained(2, *settings, cwd=folder)[0][0] == 0
        results[sync] = rows_of(folder)[0]["train/loss"]
    assert results["true"] != pytest.approx(results["false"], rel=1e-6)


@pytest.mark.slow
def test_a_norm_that_mixes_the_rows_of_ranks_leaks_also_where_each_has_one(arguments, tmp_path):
    settings = [*arguments, "norm=batchnorm_position", "train.batch_size=2", "train.steps=2"]
    assert [status for status, *_ in rank_program.trained(2, *settings, cwd=tmp_path)] == [0, 0]
    [run] = (tmp_path / "runs").glob("*-*")
    for answer in read_json(run / "certificate.json").values():
        assert answer["independent_rows"] is False


@pytest.mark.long
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_compiled_ranks_train_the_same_run(arguments, tmp_path, kind):
    for choice in ("true", "false"):
        (tmp_path / choice).mkdir()
        settings = [*arguments, "norm=batchnorm", "train.grad_accum=2", f"compile={choice}"]
        settings.append(f"distributed={kind}")
        assert [status for status, *_ in rank_program.trained(2, *settings, cwd=tmp_path / choice)] == [0, 0]
        [run_folder] = (tmp_path / choice / "runs").glob("*-*")
        assert read_json(run_folder / "environment.json")["compile"] is (choice == "true")
    assert_alike(rows_of(tmp_path / "true"), rows_of(tmp_path / "false"))
