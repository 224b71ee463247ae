"""A config names a class and its arguments; a checkpoint may name trusted classes only."""

import math

import pytest
import torch
from torch import nn

from data.errors import ConfigError
from model.norms import LayerNorm
from tests.conftest import configured
from tests.helpers.configs import component
from training import device
from training.build import OWN_PACKAGES, bind, build_and_try, build_model, resolved_auto


def test_a_component_is_bound_to_its_options():
    norm = bind("norm", component("model.norms.LayerNorm", eps=0.5, bias=False))(7)
    assert isinstance(norm, LayerNorm)
    assert (norm.eps, norm.bias, norm.normalized_shape) == (0.5, None, (7,))
    assert isinstance(bind("norm", component("torch.nn.LayerNorm"))(7), nn.LayerNorm)


OPTIONS = "normalized_shape, eps, elementwise_affine, bias, detach_statistics$"


@pytest.mark.parametrize(
    ("target", "options", "message"),
    [
        ("model.norms.LayerNorm", {"epss": 1}, f"norm.epss: .* has no such argument; it has {OPTIONS}"),
        ("model.norms.LayerNorm", {"eps": "a"}, "norm.eps: invalid value 'a'; it should be a valid number"),
        (
            "model.norms.LayerNorm",
            {"eps": -1e-5},
            "norm.eps: invalid value -1e-05; it should be at least 1e-30",
        ),
        ("model.batchnorms.TorchBatchNorm", {"eps": 0}, "norm.eps: invalid value 0"),
        ("model.batchnorms.BatchNorm", {"momentum": 1.5}, "norm.momentum: invalid value 1.5"),
        ("model.norms.LayerNorm", {"bias": "x"}, "norm.bias: invalid value 'x'; it should be a valid "),
        ("model.norms.LayerNorm", {"eps": math.nan}, "norm.eps: invalid value nan; it should be a finite"),
        (
            "model.norms.DynamicTanh",
            {"alpha": math.inf},
            "norm.alpha: invalid value inf; it should be a finite",
        ),
        ("torch.nn.Identity", {"eps": 1}, "norm.eps: .* has no such argument"),
        ("model.norms.Nope", {}, "norm._target_: .* cannot be imported"),
        ("nope.Nope", {}, "norm._target_: .* cannot be imported"),
        ("os.system", {}, "norm._target_: os.system is not a subclass of Module"),
        ("model.placements.Pre", {}, "is not a subclass of Module"),
    ],
)
def test_options_that_do_not_fit_are_refused(target, options, message):
    with pytest.raises(ConfigError, match=message):
        bind("norm", component(target, **options))


@pytest.mark.parametrize(
    "target", ["os.system", "subprocess.Popen", "mine.Norm", "modelling.X", "torch.load"]
)
def test_a_checkpoint_names_only_our_classes_and_torchs_modules(target):
    with pytest.raises(ConfigError, match=f"add trust={target.split('.')[0]}"):
        bind("norm", component(target), OWN_PACKAGES)
    bind("norm", component("model.norms.LayerNorm"), OWN_PACKAGES)
    bind("norm", component("torch.nn.LayerNorm"), OWN_PACKAGES)


@pytest.mark.parametrize(
    "option", [{"device": "cuda"}, {"device": "meta"}, {"dtype": "torch.float16"}], ids=str
)
@pytest.mark.parametrize("packages", [None, OWN_PACKAGES], ids=["on the command line", "by a checkpoint"])
@pytest.mark.parametrize(
    ("group", "target"),
    [
        *(("norm", name) for name in ("model.norms.LayerNorm", "torch.nn.LayerNorm", "torch.nn.Identity")),
        ("model.qk_norm", "model.norms.RMSNorm"),
        ("placement", "model.placements.Pre"),
    ],
)
def test_device_and_precision_of_a_part_are_refused(group, target, option, packages):
    [key] = option
    with pytest.raises(ConfigError, match=f"{group}.{key}: device and precision are those of the whole run"):
        bind(group, component(target, **option), packages)


@pytest.mark.parametrize("error", ["ValueError('no table')", "AttributeError('no table')"])
def test_an_error_in_a_module_is_told_from_a_wrong_name_and_its_line_is_named(tmp_path, monkeypatch, error):
    name = f"mine_{error[:5].lower()}"
    (tmp_path / f"{name}.py").write_text(f"import torch\nraise {error}\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=rf"{name} raises \w+: no table, at {name}\.py:2, when it is"):
        bind("norm", component(f"{name}.Norm"), None)


SHAPE = ["norm=layernorm", "+norm.normalized_shape=3"]
GROUPS = ["norm=groupnorm", "norm.num_groups=0"]
HEADS = ["model.qk_norm=groupnorm", "model.n_head=64"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (SHAPE, "norm=layernorm placement=pre: .*normalized_shape"),
        (GROUPS, "norm=groupnorm placement=pre: num_groups = 0 does not divide"),
        (["placement=mix", "placement.fraction=2"], "placement=mix: fraction = 2.0 .* not between 0 and 1"),
        (HEADS, "placement=pre model.qk_norm=groupnorm: num_groups = 4"),
    ],
)
def test_an_error_of_a_class_is_one_line_that_names_the_norm_and_placement(overrides, message):
    def loss_of(net):
        return net(torch.zeros(2, 4, dtype=torch.long)).sum()

    with pytest.raises(ConfigError, match=message):
        build_and_try(configured(*overrides), 9, device.choose("cpu", "fp32"), loss_of)


class Vector(nn.Module):
    """A norm with an option that, if null, becomes one number per channel."""

    def __init__(self, n: int, scale: float | None = None) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((n,), 1.0 if scale is None else scale))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


def test_an_option_that_becomes_several_numbers_is_not_in_resolved_auto():
    config = configured("model.n_layer=1", "model.n_embd=16")
    vector = component(f"{__name__}.Vector", scale=None)
    config = config.model_copy(update={"norm": vector})
    assert "norm.scale" not in resolved_auto(config)
    assert build_model(config, 9).final.scale.shape == (16,)


class Chooses(nn.Module):
    """A norm that chooses what is null."""

    def __init__(self, n: int, eps: float | None = None, centred: bool | None = None) -> None:
        super().__init__()
        self.eps, self.centred = eps or 1e-8, True


def test_small_numbers_and_truth_values_that_a_norm_chose_are_recorded_as_they_are():
    norm = component(f"{__name__}.Chooses", eps=None, centred=None)
    resolved = resolved_auto(configured("model.n_layer=1").model_copy(update={"norm": norm}))
    assert (resolved["norm.eps"], resolved["norm.centred"]) == (1e-8, True)
    assert isinstance(resolved["norm.centred"], bool)


def test_options_resolved_at_other_sites_are_listed_too():
    resolved = resolved_auto(configured("model.qk_norm=dyt", "model.final_norm=derf"))
    assert (resolved["model.qk_norm.alpha"], resolved["model.final_norm.alpha"]) == (1, 1)
