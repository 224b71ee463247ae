"""A config names a class and its arguments; its code is part of a run's identity; a stranger's is refused."""

import pytest
from torch import nn

from model.norms import LayerNorm
from tests.conftest import configured
from training.checking import ConfigError
from training.components import OURS, bind
from training.config import Component


def component(target: str, **options) -> Component:
    return Component.model_validate({"_name_": "x", "_target_": target} | options)


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


def test_a_model_that_cannot_be_built_names_norm_and_placement():
    from training.components import build_model

    config = configured("norm=layernorm", "+norm.normalized_shape=3")
    with pytest.raises(ConfigError, match="norm=layernorm placement=pre: .*normalized_shape"):
        build_model(config, 9)
