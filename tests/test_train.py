"""A run is reproducible to the bit, observing it changes nothing, and its folder records how it went."""

import importlib.metadata
import json
import math
import re
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from torch.nn.functional import cross_entropy

from data.errors import ConfigError
from data.prepared import prepare
from model.attention import PlainAttend
from model.seeds import seed_for
from tests.conftest import AROUND, daily
from tests.helpers import programs
from tests.helpers.programs import PATIENCE, Program
from tests.helpers.runs import (
    FAILING_NORM,
    QUICK,
    final_tensors,
    metric_rows,
    same_tensors,
    train_anew,
    train_losses,
)
from training import checkpoint as checkpoint_file
from training.batches import training_batch
from training.build import build_model
from training.environment import processor_generation
from training.run_folder import read_status, report


@pytest.mark.parametrize(("norm", "placement"), daily(AROUND, lambda number: number % 3 == 0, others="slow"))
def test_every_norm_in_every_placement_trains_and_gets_better(tiny, norm, placement):
    few = ("train.steps=40", "train.log_every=20", "optim.learning_rate=1e-2")
    folder = train_anew(tiny(f"norm={norm}", f"placement={placement}", *few))
    assert folder.name.startswith(f"{norm}-{placement}-s0-")
    values = [row["val/loss"] for row in metric_rows(folder) if "val/loss" in row]
    assert values[-1] < values[0] - 0.2


def test_the_same_command_gives_the_same_tensors_to_the_bit_and_another_seed_others(tiny):
    config = tiny("model.dropout=0.2", "norm=batchnorm", "train.grad_accum=2")
    first = final_tensors(train_anew(config))
    assert same_tensors(first, final_tensors(train_anew(config)))
    assert not same_tensors(first, final_tensors(train_anew(config.model_copy(update={"seed": 1}))))
    assert any(name.startswith("optimizer/") for name in first)


def test_runs_of_one_seed_see_the_same_batches_and_start_alike_whatever_the_norm(tiny):
    """At a rate of almost 0, two LayerNorms give the same losses; so do two placements without norms."""
    options = ("optim.learning_rate=1e-30", "norm.elementwise_affine=true")
    ours = train_anew(tiny("norm=layernorm", *options))
    torchs = train_anew(tiny("norm=torch_layernorm", *options))
    assert train_losses(ours) == pytest.approx(train_losses(torchs), rel=1e-5)
    assert len(set(train_losses(ours))) > 1
    pre, post = (train_anew(tiny("norm=none", f"placement={p}", "train.steps=4")) for p in ("pre", "post"))
    assert train_losses(pre) == train_losses(post)
    assert same_tensors(final_tensors(pre), final_tensors(post))


def test_micro_batches_add_up_to_the_batch(tiny):
    at_once, parts = (train_anew(tiny(f"train.grad_accum={n}", "train.batch_size=4")) for n in (1, 4))
    assert at_once != parts  # two runs, as BatchNorm's statistics depend on grad_accum
    assert train_losses(at_once) == pytest.approx(train_losses(parts), rel=1e-4)
    for name, tensor in final_tensors(at_once).items():
        if not name.startswith("optimizer/"):
            torch.testing.assert_close(tensor, final_tensors(parts)[name], rtol=1e-3, atol=1e-4)


def test_the_optimizer_gets_a_clipped_gradient_and_0_clips_nothing(tiny):
    free, tight = (train_anew(tiny(f"train.grad_clip={clip}", "train.steps=1")) for clip in ("0", "1e-6"))
    before_clipping = metric_rows(free)[0]["train/grad_norm"]
    assert before_clipping == metric_rows(tight)[0]["train/grad_norm"] > 1e-3

    def first_gradient(folder: Path) -> float:  # AdamW's first moment is (1 - beta1) of the first gradient
        moments = [tensor for name, tensor in final_tensors(folder).items() if name.endswith("/exp_avg")]
        return 10 * torch.cat([tensor.flatten() for tensor in moments]).norm().item()

    assert first_gradient(free) == pytest.approx(before_clipping, rel=1e-4)
    assert first_gradient(tight) == pytest.approx(1e-6, rel=1e-3)


def test_a_run_is_what_a_loop_written_by_hand_gives(tiny):
    """The loop: AdamW with decay of matrices, warm-up, cosine, clipping, dropout by step and micro-batch."""
    config = tiny(
        *(
            "norm=batchnorm",
            "model.dropout=0.3",
            "train.steps=5",
            "train.grad_accum=2",
            "train.grad_clip=0.5",
        ),
        *("optim.learning_rate=0.01", "optim.weight_decay=0.5", "optim.eps=1e-3"),
        *("optim.beta1=0.8", "optim.beta2=0.95"),
        "schedule.warmup_fraction=0.4",
    )
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
    never, often = (
        final_tensors(train_anew(tiny(*base, *options)))
        for options in (
            ("train.eval_every=0", "stats.every=0"),
            ("train.eval_every=1", "train.eval_windows=3", "train.log_every=4", "fresh=true"),
        )
    )
    assert same_tensors(never, often)


def test_bf16_is_close_to_fp32_and_not_the_same(tiny):
    low, high = (train_anew(tiny(f"precision={name}", "train.steps=20")) for name in ("bf16", "fp32"))
    assert train_losses(low) == pytest.approx(train_losses(high), rel=0.02)
    a, b = ([row.get("train/grad_norm", 1.0) for row in metric_rows(folder)] for folder in (low, high))
    assert a != pytest.approx(b, rel=1e-4)  # bf16 has 8 bits; another order of sums changes 1e-6


def test_the_best_checkpoint_is_kept_and_is_saved_even_if_no_checkpoint_is_due(tiny):
    wild = (
        "norm=none",
        "optim.learning_rate=0.3",
        "schedule=constant",
        "train.steps=40",
        "train.eval_every=4",
    )
    for checkpoint_every, others in (("1", [39, 40]), ("0", [40])):
        folder = train_anew(tiny(*wild, f"train.checkpoint_every={checkpoint_every}"))
        best = read_status(folder)["best"]["step"]
        assert 0 < best < 38, "this test needs a run that gets worse again"
        saved = checkpoint_file.saved_steps(folder / "checkpoints")
        assert best in saved
        assert saved[-len(others) :] == others


def restored(config, folder: Path, vocab_size: int) -> torch.nn.Module:
    """Return the model of the run's last step, in evaluation mode."""
    model = build_model(config, vocab_size).eval()
    path = checkpoint_file.path_of(folder / "checkpoints", config.train.steps)
    checkpoint_file.restore_model(model, checkpoint_file.load(path))
    return model


def test_val_loss_is_that_of_windows_of_the_validation_split(tiny):
    config = tiny("train.steps=3", "train.eval_windows=3")
    folder = train_anew(config)
    data = prepare(**config.data.model_dump())
    model = restored(config, folder, data.tokenizer.vocab_size)
    n, losses = len(data.val), []
    for start in (0, (n - 9) // 2, n - 9):
        both = torch.from_numpy(np.array(data.val[start : start + 9], dtype=np.int64))
        losses.append(cross_entropy(model(both[None, :-1])[0], both[1:]).item())
    assert metric_rows(folder)[-1]["val/loss"] == pytest.approx(sum(losses) / 3, rel=1e-5)


def test_the_folder_records_the_config_and_the_outcome(tiny):
    watch = ("train.eval_every=3", "train.log_every=2", "stats.every=0")
    config = tiny("train.steps=7", *watch, "fresh=true")
    folder = train_anew(config)
    assert yaml.safe_load((folder / "config.yaml").read_text()) == config.model_dump(by_alias=True)
    status = read_status(folder)
    assert (status["state"], status["step"], status["reason"]) == ("finished", 7, None)
    rows = metric_rows(folder)
    assert [row["step"] for row in rows] == [0, 2, 3, 4, 6, 7]
    assert [row["step"] for row in rows if "val/loss" in row] == [0, 3, 6, 7]
    assert [row["step"] for row in rows if "train/loss" in row] == [0, 2, 3, 4, 6]
    assert rows[1].keys() == {
        *("step", "tokens", "seconds", "train/loss", "train/grad_norm", "train/lr", "train/tokens_per_s")
    }
    assert {key for key in rows[0] if key.startswith("leak.")} == {
        f"leak.{kind}/{mode}" for kind in ("future", "rows") for mode in ("train", "eval")
    } | {"leak.memory/eval", "leak.future_gradient/train", "leak.rows_gradient/train"}
    certificate = json.loads((folder / "certificate.json").read_text())
    for answer in (certificate["start"], certificate["end"]):
        assert (answer["causal"], answer["independent_rows"]) == (True, True)
        assert (answer["rows"], answer["context"]) == (4, 8)
    assert [certificate[when]["asked"]["train"]["cuts"] for when in ("start", "end")] == [4, 7]
    assert rows[-1].keys() == {
        *("step", "tokens", "seconds", "val/loss", "val/full_loss", "val/bpb"),
        *("val/select_loss", "val/report_loss"),
    }
    assert rows[-1]["tokens"] == 7 * 4 * 8
    assert status["final"] == rows[-1]["val/full_loss"]
    best = min((row for row in rows if "val/loss" in row), key=lambda row: row["val/loss"])
    assert status["best"] == {"step": best["step"], "val/loss": best["val/loss"]}
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["packages"]["torch"] == importlib.metadata.version("torch")
    assert (environment["precision"], environment["threads"]) == ("fp32", 1)
    assert environment["processor"] == processor_generation()


def test_the_full_loss_is_that_of_every_token_of_the_validation_split(tiny):
    config = tiny("norm=batchnorm")
    data = prepare(**config.data.model_dump())
    folder = train_anew(config)
    model = restored(config, folder, data.tokenizer.vocab_size)
    total, T = 0.0, config.model.block_size
    for start in range(0, len(data.val) - 1, T):  # one window at a time, without training/batches.py
        both = torch.from_numpy(np.array(data.val[start : start + T + 1], dtype=np.int64))
        total += cross_entropy(model(both[None, :-1])[0], both[1:], reduction="sum").item()
    assert read_status(folder)["final"] == pytest.approx(total / (len(data.val) - 1), rel=1e-5)


def test_no_steps_is_an_evaluated_and_saved_initial_model(tiny):
    folder = train_anew(tiny("train.steps=0"))
    assert checkpoint_file.saved_steps(folder / "checkpoints") == [0]
    assert metric_rows(folder)[-1]["val/full_loss"] == pytest.approx(math.log(25), rel=0.1)


def test_divergence_is_a_result_and_no_broken_weight_is_saved(tiny, capsys):
    wild = ("norm=none", "optim.learning_rate=1e30", "train.grad_clip=0")
    folder = train_anew(tiny(*wild, "train.steps=40", "train.log_every=3"))
    status = read_status(folder)
    assert status["state"] == "diverged"
    assert status["step"] < 40
    assert re.match(r"loss or gradient of step \d is not finite, first in \w", status["reason"])
    text = (folder / "status.json").read_text()
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert {"NaN", "Infinity"} & {str(value) for value in metric_rows(folder)[-1].values()}
    for step in checkpoint_file.saved_steps(folder / "checkpoints"):
        tensors = checkpoint_file.load(checkpoint_file.path_of(folder / "checkpoints", step)).tensors
        assert all(tensor.isfinite().all() for tensor in tensors.values())
    assert report(folder, had_ended=False, packages=[]) == math.inf
    assert "diverged" in capsys.readouterr().out


def test_batchnorm_with_one_value_per_channel_is_refused_before_the_first_step(tiny, tmp_path):
    with pytest.raises(ConfigError, match="norm=batchnorm placement=pre: .*more than one value"):
        train_anew(tiny("norm=batchnorm", "model.block_size=1", "train.batch_size=1"))
    assert not (tmp_path / "runs").exists()


# the command -----------------------------------------------------------------------------------------


def test_the_command_trains_then_skips_then_starts_over_to_the_same_bits(command, text_file, tmp_path):
    done = programs.from_scratch("train.py", *QUICK, cwd=tmp_path, PYTHONPROFILEIMPORTTIME="1")
    assert done.returncode == 0, done.stderr
    assert " torch\n" in done.stderr
    assert " torch._dynamo\n" not in done.stderr  # the compiler, whose import would take half of the start
    [folder] = (tmp_path / "runs").iterdir()
    assert f"sample from it: python sample.py run=runs/{folder.name}" in done.stdout
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["data", "runs", "text.txt"]
    first = final_tensors(folder)

    before = {file: file.stat().st_mtime_ns for file in folder.rglob("*")}
    again = programs.from_scratch("train.py", *QUICK, cwd=tmp_path, PYTHONPROFILEIMPORTTIME="1")
    assert again.returncode == 0
    assert len(again.stdout.splitlines()) == 1
    assert "nothing left to do" in again.stdout
    assert " torch\n" not in again.stderr  # the run is skipped before torch is imported
    assert {file: file.stat().st_mtime_ns for file in folder.rglob("*")} == before

    fresh = command("train.py", *QUICK, "fresh=true")
    assert "starts over" in fresh.stdout
    assert same_tensors(first, final_tensors(folder))


def test_a_run_that_has_ended_is_left_alone_by_the_same_command_elsewhere(
    command, succeed, text_file, tmp_path
):
    """A run's name is the same on another host, and with a device spelt out."""
    command("train.py", *QUICK)
    [folder] = (tmp_path / "runs").iterdir()
    file = folder / "environment.json"
    environment = json.loads(file.read_text())
    precision = environment["precision"]
    environment["machine"]["host"] = "another"
    file.write_text(json.dumps(environment))
    before = {file: file.stat().st_mtime_ns for file in folder.rglob("*")}
    for spelling in ([], ["device=cpu"], [f"precision={precision}"]):
        done = succeed("train.py", *QUICK, *spelling)
        assert "nothing left to do" in done.stdout
        assert {file: file.stat().st_mtime_ns for file in folder.rglob("*")} == before


def test_a_run_that_leaks_says_so_before_it_trains_and_wherever_its_result_is_printed(command, text_file):
    first = command("train.py", *QUICK, "norm=batchnorm")
    again = command("train.py", *QUICK, "norm=batchnorm")
    assert first.stdout.count("WARNING: norm=batchnorm placement=pre LEAKS: a logit moves in training") == 1
    assert first.stdout.index("WARNING") < first.stdout.index("step 0/3")
    for done in (first, again):
        assert done.stdout.count("it LEAKS") == 1
        assert re.search("finished.*it LEAKS", done.stdout)
    assert "LEAKS" not in command("train.py", *QUICK, "norm=layernorm").stdout


def test_a_run_that_diverged_is_not_run_again(command, succeed, text_file, tmp_path):
    wild = ("optim.learning_rate=1e30", "norm=none", "train.steps=30", "train.grad_clip=0")
    assert "diverged by step" in command("train.py", *QUICK, *wild).stdout
    again = succeed("train.py", *QUICK, *wild)
    assert "diverged by step" in again.stdout
    assert "nothing left to do" in again.stdout


def test_a_run_that_raises_is_recorded_as_failed(command, text_file, tmp_path):
    (tmp_path / "fails.py").write_text(FAILING_NORM)
    done = command("train.py", *QUICK, "norm=none", "norm._target_=fails.Fails", PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    [folder] = (tmp_path / "runs").iterdir()
    status = read_status(folder)
    assert (status["state"], status["reason"]) == ("failed", "ZeroDivisionError: on purpose")


def test_an_interrupt_ends_with_130_one_line_and_a_status(tmp_path, text_file):
    process = Program("train.py", *QUICK, "train.steps=1000000", "train.eval_every=1", cwd=tmp_path)
    process.until(lambda: "step 3" in process.printed())
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert len(errors.splitlines()) == 1, errors
    [folder] = (tmp_path / "runs").iterdir()
    assert read_status(folder)["state"] == "interrupted"


@pytest.mark.long
def test_a_failing_compiler_is_one_line_and_the_run_goes_on(text_file, tmp_path):
    nowhere = {"CXX": "/no/such/compiler", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")}
    done = programs.from_scratch("train.py", *QUICK, "compile=true", cwd=tmp_path, **nowhere)
    assert done.returncode == 0
    assert done.stdout.count("compile: failed (") == 1
    assert "No working C++ compiler found" in done.stdout
    assert done.stderr == ""
