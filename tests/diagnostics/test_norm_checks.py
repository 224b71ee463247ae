"""Every norm of the project passes each check; the collections of leaking and odd modules, and norms that
break one promise each, are the negative control."""

from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from diagnostics.causality import perturbed, random_tokens
from diagnostics.norm_checks import CHECKS, outcome
from diagnostics.norm_subject import Subject
from model import GPT
from model.placements import Pre
from tests.conftest import AROUND, NORMS, PLACEMENTS, configured, daily
from tests.helpers import leaks
from tests.helpers.norm_leaks import SEES
from training.build import build_model, norms_of

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # torch warns about its own code
    pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight"),  # torch's RMSNorm, in bf16
]
V, B, T, C = 11, 8, 12, 8


def subject(rows: int = B, steps: int = T, **arguments) -> Subject:
    def new_model() -> GPT:
        sizes = {"vocab_size": V, "block_size": steps, "n_layer": 2, "n_head": 2, "n_embd": C}
        return GPT(**sizes, **leaks.kwargs(arguments))

    kind = leaks.kwargs(arguments)["norm"]
    tokens = random_tokens(V, rows, steps, torch.Generator().manual_seed(0))
    return Subject(new_model, lambda model: named(model, kind), V, tokens)


def named(model: nn.Module, kind: type[nn.Module]) -> dict[str, nn.Module]:
    return {name: module for name, module in model.named_modules() if isinstance(module, kind)}


def configured_subject(*overrides: str) -> Subject:
    config = configured(
        "model.n_layer=2", "model.n_embd=12", "model.n_head=2", "model.block_size=12", *overrides
    )
    tokens = random_tokens(V, B, T, torch.Generator().manual_seed(0))
    return Subject(lambda: build_model(config, V), lambda model: norms_of(config, model), V, tokens)


class Own(nn.Module):
    """The norms below: each breaks one promise."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))
        self.calls = 0


class Tuple(Own):
    def forward(self, x):
        return x * self.weight, x


class InPlace(Own):
    def forward(self, x):
        x.data.mul_(2)
        return x * self.weight


class OneTokenFails(Own):
    def forward(self, x):
        return x * self.weight / (x.shape[1] > 1 or [][0])


class AlwaysFP32(Own):
    def forward(self, x):
        return x.float() * self.weight.float()


class FP32InEvaluation(Own):
    def forward(self, x):
        return x * self.weight if self.training else x.float()


class UnusedWeight(Own):
    def forward(self, x):
        return x


class NaNGradient(Own):
    def forward(self, x):
        return x * self.weight + 0 * (self.weight - self.weight).sqrt()


class Future(Own):
    def forward(self, x):
        return x - x.mean(1, keepdim=True) * self.weight


class Counter(Own):
    def forward(self, x):
        self.calls += 1
        return x * self.weight / self.calls


class EvaluationToTraining(Own):
    def forward(self, x):
        if not self.training:
            self.last = x.detach().mean()
        return x * self.weight - (self.last if self.training else 0)


class NumPyNoise(Own):
    def forward(self, x):
        return x * self.weight * np.random.rand()


class HiddenState(Own):
    """Keeps its state where nobody looks."""

    calls_of: ClassVar[dict[int, int]] = {}

    def forward(self, x):
        calls = self.calls_of[id(self)] = self.calls_of.get(id(self), 0) + self.training
        return x * self.weight * (1 + calls)


class NewBuffer(Own):
    def forward(self, x):
        self.register_buffer("late", x.detach().mean())
        return x * self.weight * self.late


class OtherWhenCompiled(Own):
    def forward(self, x):
        return x * self.weight * (2 if torch.compiler.is_compiling() else 1)


class OtherCountWhenCompiled(Own):
    def __init__(self, n):
        super().__init__(n)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        self.count = self.count + (2 if torch.compiler.is_compiling() else 1)
        return x * self.weight


class StatisticsInBF16(Own):
    def forward(self, x):
        centred = x - x.mean(-1, keepdim=True)
        return (centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * self.weight).to(x.dtype)


class Noise(Own):
    """Draws random numbers as the page allows."""

    def forward(self, x):
        return x * self.weight + torch.randn_like(x)


class ZeroAtFirst(Own):
    def __init__(self, n):
        super().__init__(n)
        nn.init.zeros_(self.weight)

    def forward(self, x):
        return x * self.weight


class Frozen(Own):
    def __init__(self, n):
        super().__init__(n)
        self.weight.requires_grad_(False)

    def forward(self, x):
        return x * self.weight


class PassingBuffer(Own):
    """Counts in a buffer that torch's state_dict leaves out; a checkpoint of ours has it."""

    def __init__(self, n):
        super().__init__(n)
        self.register_buffer("count", torch.ones(()), persistent=False)

    def forward(self, x):
        self.count = self.count + self.training  # not in place: see CountsInPlace
        return x * self.weight * self.count


class CountsInPlace(Own):
    """Uses a buffer that it changes in place, for which torch 2.13's compiled gradient is wrong."""

    def __init__(self, n):
        super().__init__(n)
        self.register_buffer("count", torch.ones(()))

    def forward(self, x):
        self.count += 1
        return x * self.weight * self.count


class TooLarge(Own):
    def forward(self, x):
        return x * self.weight * 1e200


class LeakThenNaN(Own):
    def forward(self, x):
        return x - x.mean(1, keepdim=True) if self.training else x * torch.nan


KEPT = [Noise, ZeroAtFirst, Frozen, PassingBuffer]
BROKEN = {
    "shape": [(Tuple, "a tuple"), (InPlace, "changes its input in place"), (OneTokenFails, "IndexError")],
    "dtype": [(kind, "returns torch.float32 for torch.float64") for kind in (AlwaysFP32, FP32InEvaluation)],
    "gradient": [
        (UnusedWeight, "parameter weight: there is no gradient"),
        (NaNGradient, "the gradient is not finite"),
        (TooLarge, "the loss is not finite"),
    ],
    "causality": [(Future, "when later tokens change"), (LeakThenNaN, "LEAKS: a logit moves in training")],
    "repeatability": [
        (Counter, "changes its attribute calls"),
        (EvaluationToTraining, "the loss of a batch in training depends"),
        (NumPyNoise, "depends on the calls before it"),
    ],
    "state": [(HiddenState, "after a resume"), (NewBuffer, "late")],
    "compile": [
        (OtherWhenCompiled, "the compiled loss and gradients differ"),
        (OtherCountWhenCompiled, "the compiled buffers differ"),
        (CountsInPlace, "replace a buffer"),
    ],
    "bf16": [(StatisticsInBF16, "compute statistics of x.float()")],
}


@pytest.mark.parametrize(
    ("check", "norm", "line"), [(check, *case) for check, cases in BROKEN.items() for case in cases]
)
def test_each_check_finds_a_norm_that_breaks_its_promise(check, norm, line):
    kept, remark = outcome(CHECKS[check], subject(norm=norm))
    assert not kept
    assert line in remark


@pytest.mark.parametrize("norm", daily(KEPT, lambda number: number % 4 == 0, others="slow"))
@pytest.mark.parametrize("check", CHECKS)
def test_what_the_page_allows_passes(check, norm):
    kept, remark = outcome(CHECKS[check], subject(norm=norm))
    assert kept, remark


@pytest.mark.long
def test_a_model_with_dropout_can_be_compared_with_its_compiled_form():
    assert outcome(CHECKS["compile"], configured_subject("model.dropout=0.3")) == (True, "")


def test_each_check_has_a_negative_control():
    assert BROKEN.keys() == CHECKS.keys()


@pytest.mark.parametrize("name", daily(NORMS, lambda number: number % 3 == 0, others="slow"))
def test_every_norm_of_the_project_passes_and_those_that_leak_leak(name):
    s = configured_subject(f"norm={name}")
    for check, keeps in CHECKS.items():
        if check != "compile":
            kept, remark = outcome(keeps, s)
            assert kept == (check != "causality" or name not in SEES), f"{check}: {remark}"
            assert check != "gradient" or not remark


def test_a_gradient_that_is_not_the_derivative_is_remarked():
    for override, line in {"false": "", "true": "not the derivative of the loss"}.items():
        kept, remark = outcome(CHECKS["gradient"], configured_subject(f"norm.detach_statistics={override}"))
        assert kept
        assert remark.startswith(line)
        assert bool(remark) == bool(line)


class MedianNorm(nn.Module):
    """Its derivative jumps wherever another feature becomes the median."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x - x.median(-1, keepdim=True).values
        return y / (y.abs().median(-1, keepdim=True).values + 1e-5) * self.weight


def test_a_gradient_is_not_called_wrong_where_differences_cannot_tell():
    sizes = {"vocab_size": V, "block_size": 32, "n_layer": 2, "n_head": 2, "n_embd": 128}
    tokens = random_tokens(V, 8, 32, torch.Generator().manual_seed(0))
    s = Subject(
        lambda: GPT(**sizes, norm=MedianNorm, placement=Pre), lambda m: named(m, MedianNorm), V, tokens
    )
    kept, remark = outcome(CHECKS["gradient"], s)
    assert kept
    assert remark.startswith("not compared with differences")


COMPILED = [
    ("batchnorm", "pre"),
    ("layernorm", "deepnorm"),
]
OTHERS = [pair for pair in AROUND if pair not in COMPILED]


@pytest.mark.parametrize("placement", daily(PLACEMENTS, lambda number: number % 3 == 0, others="slow"))
def test_the_gradient_of_every_placement_is_the_derivative(placement):
    s = configured_subject("norm=layernorm", f"placement={placement}")

    @torch.no_grad()
    def moved() -> GPT:  # as a scale that is initialised to 0 hides its branch
        model = s.new_model()
        torch.manual_seed(0)
        for name, values in perturbed(model).items():
            model.get_parameter(name).copy_(values)
        return model

    assert outcome(CHECKS["gradient"], replace(s, new_model=moved)) == (True, "")


@pytest.mark.parametrize(
    ("norm", "placement"), [*daily(COMPILED, others="slow"), *daily(OTHERS, lambda _: False, others="long")]
)
def test_every_norm_and_placement_of_the_project_can_be_compiled(norm, placement):
    s = configured_subject(f"norm={norm}", f"placement={placement}")
    assert outcome(CHECKS["compile"], s) == (True, "")
