"""A config names a class and its arguments; its code is part of a run's identity; a stranger's is refused."""

import pytest
import torch
from torch import nn

from model.norms import LayerNorm
from system.errors import ConfigError
from tests.conftest import configured
from tests.helpers.configs import component
from training.build import OURS, bind


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
        ("model.norms.LayerNorm", {"eps": "a"}, "norm.eps: invalid value 'a'; expected a number"),
        (
            "model.norms.LayerNorm",
            {"bias": "x"},
            "norm.bias: invalid value 'x'; expected a ",
        ),
        (
            "model.norms.LayerNorm",
            {"eps": float("nan")},
            "norm.eps: invalid value nan; expected a finite",
        ),
        (
            "model.norms.DynamicTanh",
            {"alpha": float("inf")},
            "norm.alpha: invalid value inf; expected a finite number",
        ),
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


@pytest.mark.parametrize(
    "option", [{"device": "cuda"}, {"device": "meta"}, {"dtype": "torch.float16"}], ids=str
)
@pytest.mark.parametrize("packages", [None, OURS], ids=["on the command line", "by a checkpoint"])
@pytest.mark.parametrize(
    ("group", "target"),
    [
        ("norm", "model.norms.LayerNorm"),
        ("norm", "torch.nn.LayerNorm"),
        ("norm", "torch.nn.Identity"),
        ("model.qk_norm", "model.norms.RMSNorm"),
        ("placement", "model.placements.Pre"),
    ],
)
def test_where_a_part_lies_is_the_runs_affair(group, target, option, packages):
    [key] = option
    with pytest.raises(ConfigError, match=f"{group}.{key}: device and precision are those of the whole run"):
        bind(group, component(target, **option), packages)


def test_what_a_class_has_besides_is_offered():
    with pytest.raises(ConfigError) as refused:
        bind("norm", component("model.norms.LayerNorm", epss=1))
    assert str(refused.value).endswith(
        "it has normalized_shape, eps, elementwise_affine, bias, detach_statistics"
    )


def test_a_model_that_cannot_be_built_names_norm_and_placement():
    from training.build import build_model

    config = configured("norm=layernorm", "+norm.normalized_shape=3")
    with pytest.raises(ConfigError, match="norm=layernorm placement=pre: .*normalized_shape"):
        build_model(config, 9)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["norm=groupnorm", "norm.num_groups=0"],
            "norm=groupnorm placement=pre: num_groups = 0 does not divide",
        ),
        (["placement=mix", "placement.fraction=2"], "placement=mix: fraction = 2.0 .* not between 0 and 1"),
        (
            ["model.qk_norm=groupnorm", "model.n_head=64"],
            "placement=pre model.qk_norm=groupnorm: num_groups = 4",
        ),
    ],
)
def test_what_a_class_refuses_is_one_line_that_names_what_was_chosen(overrides, message):
    from training import device
    from training.dry_run import build_and_try

    compute = device.choose("cpu", "fp32")
    with pytest.raises(ConfigError, match=message):
        build_and_try(
            configured(*overrides), 9, compute, lambda net: net(torch.zeros(2, 4, dtype=torch.long)).sum()
        )


class Vector(nn.Module):
    """A norm whose option, where null, becomes as many numbers as there are channels."""

    def __init__(self, n: int, scale: float | None = None) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((n,), 1.0 if scale is None else scale))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


def test_an_option_that_becomes_several_numbers_is_settled_by_its_class_alone():
    from training.build import build_model, resolved_auto

    config = configured("model.n_layer=1", "model.n_embd=16")
    vector = component(f"{__name__}.Vector", scale=None)
    config = config.model_copy(update={"norm": vector})
    assert "norm.scale" not in resolved_auto(config)
    assert build_model(config, 9).final.scale.shape == (16,)


def test_what_is_settled_at_other_sites_is_said_too():
    from training.build import resolved_auto

    found = resolved_auto(configured("model.qk_norm=dyt", "model.final_norm=derf"))
    assert (found["model.qk_norm.alpha"], found["model.final_norm.alpha"]) == (1, 1)
