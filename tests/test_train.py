"""A run is reproducible to the bit, observing it changes nothing, and its folder records how it went."""

import importlib.metadata
import json
import re
import signal

import numpy as np
import pytest
import torch
import yaml
from torch.nn.functional import cross_entropy

from data.errors import ConfigError
from data.prepared import prepare
from model.attention import PlainAttend
from model.seeds import seed_for
from tests.conftest import AROUND, TRAIN, daily
from tests.helpers import programs
from tests.helpers.programs import Program
from tests.helpers.runs import (
    final_tensors,
    metric_rows,
    same_tensors,
    train_anew,
    train_losses,
    train_or_resume,
)
from training import checkpoint as checkpoint_file
from training.batches import training_batch
from training.build import build_model
from training.loss import Evaluator
from training.run_folder import read_json, read_status


@pytest.mark.parametrize(("norm", "placement"), daily(AROUND, lambda number: number % 3 == 0, others="slow"))
def test_every_norm_in_every_placement_trains_and_gets_better(tiny, norm, placement):
    few = ("train.steps=40", "train.log_every=20", "optim.learning_rate=1e-2")
    folder = train_anew(tiny(f"norm={norm}", f"placement={placement}", *few))
    assert folder.name.startswith(f"{norm}-{placement}-s0-")
    values = [row["val/loss"] for row in metric_rows(folder) if "val/loss" in row]
    assert values[-1] < values[0] - 0.2


def test_another_seed_gives_other_tensors(tiny):
    first, other = (final_tensors(train_anew(tiny(f"seed={seed}"))) for seed in (0, 1))
    assert any(name.startswith("optimizer/") for name in first)
    assert not same_tensors(first, other)


def test_runs_of_one_seed_see_the_same_batches_and_start_alike_whatever_the_norm(tiny):
    """At a rate of almost 0, two LayerNorms give the same losses; so do two placements without norms."""
    options = ("optim.learning_rate=1e-30", "norm.elementwise_affine=true")
    ours, torchs = (train_losses(train_anew(tiny(f"norm={n}layernorm", *options))) for n in ("", "torch_"))
    assert ours == pytest.approx(torchs, rel=1e-5)
    assert len(set(ours)) > 1
    pre, post = (train_anew(tiny("norm=none", f"placement={p}", "train.steps=4")) for p in ("pre", "post"))
    assert train_losses(pre) == train_losses(post)
    assert same_tensors(final_tensors(pre), final_tensors(post))


def test_a_run_is_what_a_loop_written_by_hand_gives(tiny):
    """The loop: AdamW with decay of matrices, warm-up, cosine, clipping, dropout by step and micro-batch."""
    words = "norm=batchnorm model.dropout=0.3 train.steps=5 train.grad_accum=2 train.grad_clip=0.5"
    adamw = "optim.learning_rate=0.01 optim.weight_decay=0.5 optim.eps=1e-3 optim.beta1=0.8 optim.beta2=0.95"
    config = tiny(*words.split(), *adamw.split(), "schedule.warmup_fraction=0.4")
    folder = train_anew(config)

    data = prepare(**config.data.model_dump())
    model = build_model(config, data.tokenizer.vocab_size, attend=PlainAttend)
    matrices = {"params": [p for p in model.parameters() if p.dim() > 1]}
    vectors = {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0}
    adam = torch.optim.AdamW([matrices, vectors], betas=(0.8, 0.95), eps=1e-3, weight_decay=0.5)
    for step, scale in enumerate([1 / 3, 2 / 3, 1.0, 0.1 + 0.9 * 0.75, 0.1 + 0.9 * 0.25]):
        x, y = training_batch(data.train, 8, 4, seed_for(0, "data", step))
        adam.zero_grad()
        for micro, part in enumerate((slice(0, 2), slice(2, 4))):
            torch.manual_seed(seed_for(0, "dropout", step, micro))
            logits = model(torch.from_numpy(x[part]))
            loss = cross_entropy(logits.flatten(0, 1), torch.from_numpy(y[part].copy()).flatten())
            (loss / 2).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        for group in adam.param_groups:
            group["lr"] = 0.01 * scale
        adam.step()
    trained = final_tensors(folder)
    for name, tensor in model.state_dict().items():
        if name != "head.weight":
            torch.testing.assert_close(trained[name], tensor, rtol=1e-4, atol=1e-6)
    assert [row["train/lr"] for row in metric_rows(folder)[:2]] == pytest.approx([0.01 / 3, 0.02 / 3])


def test_evaluating_and_logging_more_often_changes_no_bit(tiny):
    base = ("norm=batchnorm", "model.dropout=0.3", "train.steps=11")
    never = final_tensors(train_anew(tiny(*base, "train.eval_every=0", "stats.every=0")))
    often = ("train.eval_every=1", "train.eval_windows=3", "train.log_every=4", "stats.every=1")
    assert same_tensors(never, final_tensors(train_anew(tiny(*base, *often))))


def test_bf16_is_close_to_fp32_and_not_the_same(tiny):
    low, high = (train_anew(tiny(f"precision={name}", "train.steps=20")) for name in ("bf16", "fp32"))
    assert train_losses(low) == pytest.approx(train_losses(high), rel=0.02)
    a, b = ([row.get("train/grad_norm", 1.0) for row in metric_rows(folder)] for folder in (low, high))
    assert a != pytest.approx(b, rel=1e-4)  # bf16 has 8 bits; another order of sums changes 1e-6


def test_the_best_checkpoint_is_kept_and_is_saved_even_if_no_checkpoint_is_due(tiny):
    wild = "norm=none optim.learning_rate=0.3 schedule=constant train.steps=40 train.eval_every=4".split()
    for checkpoint_every, others in (("1", [39, 40]), ("0", [40])):
        folder = train_anew(tiny(*wild, f"train.checkpoint_every={checkpoint_every}"))
        best = read_status(folder)["best"]["step"]
        assert 0 < best < 38, "this test needs a run that gets worse again"
        saved = checkpoint_file.saved_steps(folder / "checkpoints")
        assert best in saved
        assert saved[-len(others) :] == others


def test_losses_are_those_of_windows_and_of_every_token_of_the_validation_split(tiny):
    config = tiny("norm=batchnorm", "train.steps=3", "train.eval_windows=3")
    folder = train_anew(config)
    data = prepare(**config.data.model_dump())
    model = build_model(config, data.tokenizer.vocab_size).eval()
    newest = checkpoint_file.path_of(folder / "checkpoints", 3)
    checkpoint_file.restore_model(model, checkpoint_file.load(newest))

    def total(start: int) -> float:  # one window at a time, without training/batches.py
        both = torch.from_numpy(np.array(data.val[start : start + 9], dtype=np.int64))
        return cross_entropy(model(both[None, :-1])[0], both[1:], reduction="sum").item()

    n = len(data.val)
    windows = [total(start) / 8 for start in (0, (n - 9) // 2, n - 9)]
    assert metric_rows(folder)[-1]["val/loss"] == pytest.approx(sum(windows) / 3, rel=1e-5)
    full = sum(total(start) for start in range(0, n - 1, 8)) / (n - 1)
    assert read_status(folder)["final"] == pytest.approx(full, rel=1e-5)


def test_the_folder_records_the_config_and_the_outcome(tiny):
    config = tiny("train.steps=7", "train.eval_every=3", "train.log_every=2", "stats.every=0", "fresh=true")
    folder = train_or_resume(config)
    assert yaml.safe_load((folder / "config.yaml").read_text()) == config.model_dump(by_alias=True)
    rows, status = metric_rows(folder), read_status(folder)
    assert [row["step"] for row in rows] == [0, 2, 3, 4, 6, 7]
    assert [row["step"] for row in rows if "val/loss" in row] == [0, 3, 6, 7]
    common = {"step", "tokens", "seconds"}
    training = {"train/loss", "train/grad_norm", "train/lr", "train/tokens_per_s"}
    evaluation = {f"val/{name}" for name in ("loss", "full_loss", "bpb", "select_loss", "report_loss")}
    assert (rows[1].keys(), rows[-1].keys()) == (common | training, common | evaluation)
    assert rows[-1]["tokens"] == 7 * 4 * 8
    best = min((row for row in rows if "val/loss" in row), key=lambda row: row["val/loss"])
    assert (status["state"], status["step"], status["reason"]) == ("finished", 7, None)
    assert status["final"] == rows[-1]["val/full_loss"]
    assert status["best"] == {"step": best["step"], "val/loss": best["val/loss"]}
    certificate = read_json(folder / "certificate.json")
    for answer, cuts in ((certificate["start"], 4), (certificate["end"], 7)):
        assert (answer["causal"], answer["independent_rows"]) == (True, True)
        assert (answer["rows"], answer["context"], answer["asked"]["train"]["cuts"]) == (4, 8, cuts)
    environment = read_json(folder / "environment.json")
    assert environment["packages"]["torch"] == importlib.metadata.version("torch")
    assert (environment["precision"], environment["threads"]) == ("fp32", 1)


def test_divergence_is_a_result_and_no_broken_weight_is_saved(tiny, capsys):
    wild = ("norm=none", "optim.learning_rate=1e30", "train.grad_clip=0", "train.steps=40")
    folder = train_or_resume(tiny(*wild, "train.log_every=3"))
    status = read_status(folder)
    assert (status["state"], status["step"] < 40) == ("diverged", True)
    assert re.match(r"loss or gradient of step \d is not finite, first in \w", status["reason"])
    text = (folder / "status.json").read_text()
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert {"NaN", "Infinity"} & {str(value) for value in metric_rows(folder)[-1].values()}
    for step in checkpoint_file.saved_steps(folder / "checkpoints"):
        tensors = checkpoint_file.load(checkpoint_file.path_of(folder / "checkpoints", step)).tensors
        assert all(tensor.isfinite().all() for tensor in tensors.values())
    train_or_resume(tiny(*wild, "train.log_every=3"))  # it is not run again
    assert re.search("diverged by step.*nothing left to do", capsys.readouterr().out)


def test_a_run_that_leaks_says_so_before_it_trains_and_wherever_its_result_is_printed(tiny, capsys):
    train_or_resume(tiny("norm=batchnorm"))
    first = capsys.readouterr().out
    assert first.count("WARNING: norm=batchnorm placement=pre LEAKS: ") == 1
    assert first.index("WARNING") < first.index("step 0/6")
    train_or_resume(tiny("norm=batchnorm"))
    for printed in (first, capsys.readouterr().out):
        assert re.search("finished.*it LEAKS", printed)
    train_or_resume(tiny())
    assert "LEAKS" not in capsys.readouterr().out


def test_a_run_that_raises_is_recorded_as_failed(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(Evaluator, "on_the_whole_split", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train_anew(tiny())
    [folder] = (tmp_path / "runs").iterdir()
    status = read_status(folder)
    assert (status["state"], status["reason"]) == ("failed", "ZeroDivisionError: division by zero")


def test_batchnorm_with_one_value_per_channel_is_refused_before_the_first_step(tiny, tmp_path):
    with pytest.raises(ConfigError, match="norm=batchnorm placement=pre: .*more than one value"):
        train_anew(tiny("norm=batchnorm", "model.block_size=1", "train.batch_size=1"))
    assert not (tmp_path / "runs").exists()


# the command -----------------------------------------------------------------------------------------

COMMAND = ("train.py", *TRAIN, "data.cache=data")


def test_the_command_trains_and_then_leaves_the_run_alone(succeed, text_file, tmp_path):
    done = programs.from_scratch(*COMMAND, cwd=tmp_path, PYTHONPROFILEIMPORTTIME="1")
    assert done.returncode == 0, done.stderr
    assert " torch\n" in done.stderr
    assert " torch._dynamo\n" not in done.stderr  # the compiler, whose import would take half of the start
    [folder] = (tmp_path / "runs").iterdir()
    assert f"sample from it: python sample.py run=runs/{folder.name}" in done.stdout
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["data", "runs", "text.txt"]

    before = {file: file.stat().st_mtime_ns for file in folder.rglob("*")}
    assert "nothing left to do" in succeed(*COMMAND).stdout
    assert {file: file.stat().st_mtime_ns for file in folder.rglob("*")} == before


def test_an_interrupt_ends_with_130_one_line_and_a_status(tmp_path, text_file):
    process = Program(*COMMAND, "train.steps=1000000", cwd=tmp_path)
    process.until(lambda: "step 3" in process.printed())
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 130
    assert len(errors.splitlines()) == 1, errors
    [folder] = (tmp_path / "runs").iterdir()
    assert read_status(folder)["state"] == "interrupted"


@pytest.mark.long
def test_a_failing_compiler_is_one_line_and_the_run_goes_on(text_file, tmp_path):
    nowhere = {"CXX": "/no/such/compiler", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")}
    done = programs.from_scratch(*COMMAND, "compile=true", cwd=tmp_path, **nowhere)
    assert done.returncode == 0
    assert done.stdout.count("compile: failed (") == 1
    assert "No working C++ compiler found" in done.stdout
    assert done.stderr == ""
