"""On a GPU every norm is what it is on a CPU, a run gives the same bits twice, and certificates say the same.

TEST_DEVICE=cpu runs these tests on a CPU, which shows that they can run, and nothing about a GPU.
"""

import copy
import os
import signal

import pytest
import torch

from probe.causality import certificate
from tests.conftest import NORMS, OPTIMIZERS, configured
from tests.helpers.model import SMALL_KEYS, random_tokens
from tests.helpers.norm_leaks import SEES
from tests.helpers.runs import (
    final_tensors,
    metric_rows,
    same_tensors,
    stop_at,
    train_anew,
    train_or_resume,
    with_runs_dir,
)
from training import device
from training.build import build_model
from training.loss import Loss
from training.run_folder import read_json
from training.signals import Interrupted

DEVICE = os.environ.get("TEST_DEVICE", "cuda")
pytestmark = [
    pytest.mark.skipif(DEVICE == "cuda" and not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # torch warns about its own code
    pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight"),  # torch's RMSNorm, in bf16
    pytest.mark.filterwarnings(
        "ignore:TensorFloat32"
    ),  # the compiler proposes it; as an error, it ends there
]
V = 11


def loss_and_gradients(model, name: str, precision: str = "fp32") -> list[torch.Tensor]:
    """Return the loss of a batch and the gradient of every parameter, on the CPU."""
    compute = device.choose(name, precision)
    device.set_switches(threads=1)
    tokens = random_tokens(rows=4, length=9).numpy()
    x, y = map(compute.tensor, (tokens[:, :-1], tokens[:, 1:]))
    model = copy.deepcopy(model).to(compute.device)
    loss = Loss(compute)(model, x, y)
    loss.backward()
    return [tensor.detach().cpu() for tensor in (loss, *(p.grad for p in model.parameters()))]


@pytest.mark.parametrize("name", NORMS)
def test_every_norm_has_the_loss_and_the_gradients_that_it_has_on_a_cpu(name):
    model = build_model(configured(f"norm={name}", *SMALL_KEYS), V)
    there, here = loss_and_gradients(model, DEVICE), loss_and_gradients(model, "cpu")
    for on_gpu, on_cpu in zip(there, here, strict=True):
        assert (on_gpu - on_cpu).norm() <= 1e-4 * on_cpu.norm() + 1e-6
    in_bf16 = loss_and_gradients(model, DEVICE, "bf16")
    assert abs(in_bf16[0] - here[0]) < 0.05


HOW = {  # what only a GPU does in its own way: skipped updates, sums of micro-batches, histograms
    "layernorm": ("norm=layernorm",),
    "batchnorm": ("norm=batchnorm",),
    "muon": ("optim=muon", "stats.every=5", "stats.histograms_every=5"),
    "bf16": ("precision=bf16",),
    "micro-batches": ("train.grad_accum=2",),
}


@pytest.mark.parametrize("compiled", ["false", "true"])
@pytest.mark.parametrize("how", HOW)
def test_a_run_gives_the_same_bits_twice_and_after_a_signal(tiny, tmp_path, monkeypatch, how, compiled):
    from torch._dynamo.utils import counters  # slow to import

    counters.clear()
    overrides = (*HOW[how], f"compile={compiled}", f"device={DEVICE}", "model.dropout=0.1")
    config = tiny(*overrides, "train.steps=20")
    runs = [train_anew(with_runs_dir(config, tmp_path / name)) for name in ("first", "second")]
    again = with_runs_dir(config, tmp_path / "resumed")
    with monkeypatch.context() as patch:
        stop_at({7}, signal.SIGINT, patch)
        with pytest.raises(Interrupted):
            train_or_resume(again)
    runs.append(train_or_resume(again))
    assert {read_json(run / "environment.json")["compile"] for run in runs} == {compiled == "true"}
    first, second, resumed = map(final_tensors, runs)
    assert same_tensors(first, second)
    assert same_tensors(first, resumed)
    assert not counters["inductor"]["cudagraph_skips"]


@pytest.mark.parametrize("optim", OPTIMIZERS)
@pytest.mark.parametrize("compiled", ["false", "true"])
def test_a_gradient_that_is_not_finite_changes_no_weight_and_ends_the_run(tiny, optim, compiled):
    overrides = (f"optim={optim}", f"compile={compiled}", f"device={DEVICE}", "optim.learning_rate=1e30")
    folder = train_anew(tiny(*overrides, "train.grad_clip=0", "train.steps=20", "train.checkpoint_every=1"))
    assert read_json(folder / "status.json")["state"] == "diverged"
    assert all(tensor.isfinite().all() for tensor in final_tensors(folder).values())


@pytest.mark.parametrize("name", NORMS)
def test_no_logit_of_a_causal_model_depends_on_later_tokens(name):
    model = build_model(configured(f"norm={name}", *SMALL_KEYS), V).to(DEVICE)
    answer = certificate(model, V)
    assert answer["causal"] is ("future" not in SEES.get(name, ()))
    assert answer["independent_rows"] is ("rows" not in SEES.get(name, ()))


def test_a_compiled_run_is_close_to_an_eager_one(tiny, tmp_path):
    losses = []
    for compiled in ("false", "true"):
        config = tiny(f"compile={compiled}", f"device={DEVICE}", "train.steps=20")
        folder = train_anew(with_runs_dir(config, tmp_path / compiled))
        assert read_json(folder / "environment.json")["compile"] is (compiled == "true")
        losses.append([row["train/loss"] for row in metric_rows(folder) if "train/loss" in row])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
