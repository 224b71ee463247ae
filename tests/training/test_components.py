"""A config names a class and its arguments; its code is part of a run's identity; a stranger's is refused."""

import textwrap

import pytest
from torch import nn

from model.norms import LayerNorm
from tests.conftest import configured
from training.components import OURS, bind, source
from training.config import Component, ConfigError


def component(target: str, **options) -> Component:
    return Component.model_validate({"name": "x", "_target_": target} | options)


def test_a_component_is_bound_to_its_options():
    norm = bind("norm", component("model.norms.LayerNorm", eps=0.5, bias=False))(7)
    assert isinstance(norm, LayerNorm)
    assert (norm.eps, norm.bias, norm.normalized_shape) == (0.5, None, (7,))
    assert isinstance(bind("norm", component("torch.nn.LayerNorm"))(7), nn.LayerNorm)


@pytest.mark.parametrize(
    ("target", "options", "message"),
    [
        (
            "model.norms.LayerNorm",
            {"epss": 1},
            "norm.epss: .* has no such argument; it has normalized_shape, eps",
        ),
        ("model.norms.LayerNorm", {"eps": "a"}, "norm.eps: should be a valid number, not 'a'"),
        ("model.norms.LayerNorm", {"bias": "x"}, "norm.bias: should be a valid boolean"),
        ("torch.nn.Identity", {"eps": 1}, "norm.eps: .* has no such argument"),
        ("model.norms.Nope", {}, "norm._target_: .* cannot be imported"),
        ("nope.Nope", {}, "norm._target_: .* cannot be imported"),
        ("os.system", {}, "norm._target_: os.system is not a norm class"),
        ("model.placements.Pre", {}, "is not a norm class"),
    ],
)
def test_what_cannot_be_bound_is_said(target, options, message):
    with pytest.raises(ConfigError, match=message):
        bind("norm", component(target, **options))


@pytest.mark.parametrize(
    "target", ["os.system", "subprocess.Popen", "mine.Norm", "modelling.X", "torch.load"]
)
def test_a_checkpoint_names_only_our_classes_and_torchs_modules(target):
    with pytest.raises(ConfigError, match=f"add trust={target.split('.')[0]}"):
        bind("norm", component(target), OURS)
    bind("norm", component("model.norms.LayerNorm"), OURS)
    bind("norm", component("torch.nn.LayerNorm"), OURS)


CODE = '''
"""A module."""
SIZE: float = 2.0

def helper(x):
    """Doubles."""
    return SIZE * x  # a comment

class Base:
    pass

class Norm(Base):
    """A norm."""
    def forward(self, x):
        return helper(x)

class Other:
    pass
'''


@pytest.fixture
def module(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)

    def source_of(code: str) -> str:
        (tmp_path / "a_module.py").write_text(textwrap.dedent(code))
        return source("a_module.Norm")

    return source_of


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("return helper(x)", "return helper(x) + 1"),
        ("SIZE * x", "SIZE + x"),
        ("SIZE: float = 2.0", "SIZE: float = 3.0"),
        ("class Base:\n    pass", "class Base:\n    a = 1"),
    ],
)
def test_the_source_of_a_norm_changes_with_all_that_it_uses(module, before, after):
    assert before in CODE
    assert module(CODE) != module(CODE.replace(before, after))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"""A norm."""', '"""Another text."""'),
        ("# a comment", "# another"),
        ("class Other:\n    pass", "class Other:\n    a = 1"),
        ('"""Doubles."""\n', ""),
    ],
)
def test_and_not_with_what_it_does_not_use(module, before, after):
    assert before in CODE
    assert module(CODE) == module(CODE.replace(before, after))


def test_the_source_of_ours_is_found_and_that_of_torch_is_torchs_affair():
    assert "square().mean" in source("model.norms.LayerNorm")
    assert "def at_least_fp32" in source("model.norms.LayerNorm")
    assert "class BatchNorm" not in source("model.norms.LayerNorm")
    assert "class Placement" in source("model.placements.Post")
    assert source("torch.nn.LayerNorm") == ""
    assert source("os.system") == ""


def test_a_module_that_is_not_python_is_an_error_of_its_line(module):
    assert module("class Norm(:") == ""
    with pytest.raises(ConfigError, match="norm._target_: a_module.Norm cannot be imported .*line 1"):
        bind("norm", component("a_module.Norm"))


def test_a_model_that_cannot_be_built_names_norm_and_placement():
    from training.components import build_model

    config = configured("norm=layernorm", "+norm.normalized_shape=3")
    with pytest.raises(ConfigError, match="norm=layernorm placement=pre: .*normalized_shape"):
        build_model(config, 9)
