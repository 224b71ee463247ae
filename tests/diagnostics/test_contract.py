"""A norm that breaks the contract of docs/own-norm.md is refused in one line before anything is written, and
that our norms keep it is shown by every test that trains."""

import re
import sys
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from diagnostics.contract import content
from system.errors import ConfigError
from tests.conftest import TINY, configured, daily
from tests.helpers.contract import LINE, check_refused
from training.device import choose
from training.loss import cross_entropy
from training.rehearsal import build_and_try

MODULE = """
import random
import sys

import numpy as np
import torch
from torch import nn


class Own(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("seen", torch.zeros(1))
        self.calls, self.log, self.generator, self.array = 0, [], torch.Generator(), np.zeros(5000)
        self.mask = nn.Identity()

    def forward(self, x):
        {body}
"""
BROKEN = {
    "raises KeyError": ('return {}["gain"]', "raises KeyError: 'gain'"),
    "raises AssertionError": (
        "assert x.ndim == 2, 'two dimensions'",
        "raises AssertionError: two dimensions",
    ),
    "raises TypeError": ("return x + None", "raises TypeError: unsupported operand"),
    "raises ValueError": ("raise ValueError('no')", "no, in "),
    "raises in evaluation": (
        "assert self.training; return x * self.weight",
        "raises AssertionError, at ownnorm.py:20; correct it",
    ),
    "raises AttributeError": ("return x * self.gain", "has no attribute 'gain'"),
    "a tuple": ("return x, x", "returns a tuple; return one tensor"),
    "None": ("x * self.weight", "returns nothing (None); return one tensor"),
    "a shape": ("return x.mean(-1)", "returns a tensor of shape (4, 8) for an input of shape (4, 8, 16)"),
    "a dtype": ("return x > 0", "returns a tensor of torch.bool"),
    "in place": ("return x.mul_(2)", "changes its input in place"),
    "in place by .data": ("x.data.mul_(2); return x * self.weight", "changes its input in place"),
    "a counter": (
        "self.calls += 1; return x * self.weight * self.calls",
        "changes its attribute calls in forward",
    ),
    "a late counter": (
        "self.calls += 1; return x * self.weight * (self.calls > 99)",
        "changes its attribute calls in forward",
    ),
    "a list": ("self.log.append(1); return x * self.weight", "changes its attribute log in forward"),
    "a generator": (
        "return x * self.weight + torch.randn(x.shape[-1], generator=self.generator)",
        "changes its attribute generator in forward",
    ),
    "Python's random numbers": (
        "return x * self.weight * random.random()",
        "the loss of a batch in training depends on the calls before it",
    ),
    "a state that only its end shows": (
        "self.array[-1] += 1; return x * self.weight",
        "changes its attribute array in forward",
    ),
    "a buffer of the first call": (
        "self.register_buffer('late', x.detach().mean()); return x * self.weight",
        "adds, removes or reshapes its buffer late",
    ),
    "a buffer that grows": (
        "self.seen = torch.cat([self.seen, x.detach().mean()[None]]); return x * self.weight",
        "adds, removes or reshapes its buffer seen",
    ),
    "a buffer that is removed": (
        "del self.seen; return x * self.weight",
        "adds, removes or reshapes its buffer seen",
    ),
    "a buffer of another dtype": (
        "self.count = x.detach().mean().double(); return x * self.weight",
        "changes the dtype of its buffer count to torch.float64; add .to(torch.float32)",
    ),
    "a buffer with a graph": (
        "self.count = 0.9 * self.count + x.mean(); return x * self.weight * (1 + self.count)",
        "keeps the graph of its gradient in its buffer count; add .detach()",
    ),
    "raises without a message": (
        "raise RuntimeError",
        "RuntimeError, in blocks.0.attn.pre (ownnorm.Own), at",
    ),
    "a product that does not fit": ("return x @ torch.ones(3, 3)", "(ownnorm.Own), at ownnorm.py:"),
    "what training set, in evaluation": (
        "if self.training: self.last = x.detach().mean()\n"
        "        return x * self.weight - getattr(self, 'last', 0)",
        "the loss of a batch in evaluation depends on the calls before it",
    ),
    "what an evaluation set, in training": (
        "if not self.training: self.last = x.detach().mean()\n"
        "        return x * self.weight - (self.last if self.training else 0)",
        "the loss of a batch in training depends on the calls before it",
    ),
    "sys.exit": ("sys.exit(0)", "raises SystemExit: 0, at ownnorm.py:"),
    "no gradient": ("return x.detach()", "gets no gradient"),
    "a replaced parameter": (
        "self.weight = nn.Parameter(self.weight * 2); return x * self.weight",
        "replaces its parameter weight",
    ),
    "a changed parameter": (
        "self.weight.data.mul_(2); return x * self.weight",
        "changes its parameter weight in forward",
    ),
}
TENSORS = {  # what replaces nn.Parameter(torch.ones(n)), and the refusal
    "shared by all norms": (
        "globals().setdefault('gain', nn.Parameter(torch.ones(n)))",
        "lies in the memory of blocks.0.attn.pre.weight; create each by itself, in __init__",
    ),
    "complex": (
        "nn.Parameter(torch.ones(n, dtype=torch.complex64))",
        "is of torch.complex64, which the optimizers cannot update",
    ),
    "of 8 bits": ("nn.Parameter(torch.ones(n).to(torch.float8_e4m3fn))", "is of torch.float8_e4m3fn, which"),
    "expanded": (
        "nn.Parameter(torch.ones(1).expand(n))",
        "shares its memory, such as after expand or a slice; add .clone()",
    ),
}
PLACEMENT = """
from torch import nn
from model.placements import Pre, Residual


class Own(Pre):
    ONE = {}

    def __call__(self, branch, norm, layer, site):
        return """
PLACEMENTS = {
    "nothing": "None",
    "a list": "[branch]",
    "no branch": "nn.Identity()",
    "the same one twice": "Own.ONE.setdefault(0, Residual(branch, norm, self.slots(layer, site)))",
}
KEPT = {
    "an Identity that is no norm": "return x * self.weight * self.mask(x > -9).any()",
    "a cache": "self.log = self.log or [x.shape]; return x * self.weight",
    "a record of the last input": "self.last = x.detach().mean(); return x * self.weight",
    "a counter in a buffer": "self.count += 1; return x * self.weight * (1 + self.count)",
    "noise of torch's generator": "return x * self.weight + torch.randn_like(x)",
}


def write(folder, body) -> tuple[str, ...]:
    """Write a norm with this forward, and return the arguments that name it."""
    (folder / "mine" / "norm").mkdir(parents=True)
    (folder / "mine" / "ownnorm.py").write_text(
        MODULE.format(body=body) if "{}" not in body else MODULE.replace("{body}", body)
    )
    (folder / "mine" / "norm" / "own.yaml").write_text("_target_: ownnorm.Own\n")
    return (
        "train.py",
        "--config-dir",
        "mine",
        "norm=own",
        *TINY,
        "data=text",
        f"data.path={folder}/text.txt",
    )


def refusal(folder, monkeypatch, *overrides: str) -> str:
    """Return the line with which a model is refused whose norm or placement is in ``folder``/mine."""
    monkeypatch.syspath_prepend(folder / "mine")
    for module in ("ownnorm", "ownplacement"):
        sys.modules.pop(module, None)
    config = configured("--config-dir", str(folder / "mine"), *overrides, *TINY)
    compute = choose("cpu", "fp32")
    idx = torch.arange(32).view(4, 8) % 5

    def evaluate(model) -> None:
        with torch.no_grad():
            model.eval()((idx + 1) % 5)
        model.train()

    with pytest.raises(ConfigError) as raised:
        build_and_try(config, 5, compute, partial(cross_entropy, idx=idx, targets=idx), evaluate)
    line = f"error: {raised.value}"
    assert LINE.fullmatch(line)
    return line


@pytest.mark.parametrize("name", BROKEN)
def test_a_norm_that_breaks_the_contract_is_refused(monkeypatch, tmp_path, name):
    body, expected = BROKEN[name]
    write(tmp_path, body)
    line = refusal(tmp_path, monkeypatch, "norm=own")
    assert "norm=own placement=pre: " in line
    assert expected in line
    assert "(ownnorm.Own)" in line or name == "no gradient" or "depends on the calls before it" in line


@pytest.mark.parametrize("name", [*BROKEN][::9])
def test_a_run_with_such_a_norm_writes_nothing(command, text_file, tmp_path, name):
    body, line = BROKEN[name]
    check_refused(command(*write(tmp_path, body), PYTHONPATH="mine"), "norm=own placement=pre: ", line)
    assert not [*tmp_path.glob("runs/*/status.json")]


@pytest.mark.parametrize("name", TENSORS)
def test_a_norm_whose_parameter_cannot_be_trained_or_saved_is_refused(monkeypatch, tmp_path, name):
    new, line = TENSORS[name]
    write(tmp_path, "return x * self.weight")
    file = tmp_path / "mine" / "ownnorm.py"
    file.write_text(file.read_text().replace("nn.Parameter(torch.ones(n))", new))
    assert f"(ownnorm.Own): its weight {line}" in refusal(tmp_path, monkeypatch, "norm=own")


@pytest.mark.parametrize("name", PLACEMENTS)
def test_a_placement_that_loses_a_branch_is_refused(monkeypatch, tmp_path, name):
    (tmp_path / "mine" / "placement").mkdir(parents=True)
    (tmp_path / "mine" / "placement" / "ours.yaml").write_text("_target_: ownplacement.Own\n")
    (tmp_path / "mine" / "ownplacement.py").write_text(PLACEMENT + PLACEMENTS[name])
    line = refusal(tmp_path, monkeypatch, "placement=ours")
    assert "norm=layernorm placement=ours: blocks." in line
    assert "has no parameters of its own; a placement returns a new module" in line


@pytest.mark.parametrize("name", daily(KEPT, lambda number: number % 4 == 0, others="slow"))
def test_a_norm_that_keeps_it_is_trained(command, text_file, tmp_path, name):
    done = command(*write(tmp_path, KEPT[name]), "train.steps=1", PYTHONPATH="mine")
    assert done.returncode == 0, done.stderr


CREATION = {  # the norm's module, and the refusal
    "without super().__init__()": (
        "from torch import nn\n\n\nclass Own(nn.Module):\n    def __init__(self, n):\n        self.n = n\n",
        "norm: ownnorm.Own is no module yet; begin with super().__init__()",
    ),
    "sys.exit": (
        "raise SystemExit(0)\n",
        "norm._target_: ownnorm raises SystemExit: 0, at ownnorm.py:1, when it is imported; correct it",
    ),
}


def test_an_objects_state_is_read_once_although_it_leads_back_to_itself():
    first, others = SimpleNamespace(value=1), [SimpleNamespace() for _ in range(300)]
    for other in others:  # as loggers do, through their manager
        other.all, first.all = others, others
    before = content(first)
    assert content(first) == before
    others[-1].value = 2
    assert content(first) != before


def test_a_reference_that_moves_to_another_object_is_a_change():
    a, b = SimpleNamespace(value=1), SimpleNamespace(value=2)
    state = SimpleNamespace(stages=[a, b], current=a)
    before = content(state)
    state.current = b
    assert content(state) != before


def test_an_object_that_is_first_met_at_the_depth_limit_is_read_where_it_is_nearer():
    counter = SimpleNamespace(box=SimpleNamespace(n=0))
    chain: object = counter
    for _ in range(9):
        chain = [chain]
    state = {"far": chain, "near": counter}
    before = content(state)
    counter.box.n = 1
    assert content(state) != before


@pytest.mark.parametrize("name", CREATION)
def test_a_norm_that_cannot_be_created_is_refused(monkeypatch, tmp_path, name):
    write(tmp_path, "")
    module, line = CREATION[name]
    (tmp_path / "mine" / "ownnorm.py").write_text(module)
    assert line in refusal(tmp_path, monkeypatch, "norm=own")


def test_a_norm_that_ends_python_while_it_trains_is_an_error(command, text_file, tmp_path):
    body = "self.count = self.count + self.training; self.count > 4 and sys.exit(0); return x * self.weight"
    done = command(*write(tmp_path, body), "train.steps=9", PYTHONPATH="mine")
    assert done.returncode == 1
    assert "a module called sys.exit(0) while it was trained; let it raise an error" in done.stderr
    [status] = tmp_path.glob("runs/*/status.json")
    assert '"failed"' in status.read_text()


@pytest.mark.parametrize("debug", [False, True])
def test_an_error_of_a_norm_in_a_later_step_is_one_line_and_its_traceback_is_shown_with_debug(
    command, text_file, tmp_path, debug
):
    body = "self.count += self.training; assert self.count < 4, 'too often'; return x * self.weight"
    options = ["train.steps=9", *["--debug"] * debug]
    done = command(*write(tmp_path, body), *options, PYTHONPATH="mine")
    assert done.returncode == 1
    assert re.search(
        r"error: .*/mine/ownnorm\.py:20, in Own\.forward: AssertionError: too often; ", done.stderr
    )
    assert ("Traceback" in done.stderr) == debug
