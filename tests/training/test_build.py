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


REFUSED = [
    (
        "model.norms.LayerNorm",
        {"epss": 1},
        "norm.epss: .* has no such argument; it has normalized_shape, eps",
    ),
    ("model.norms.LayerNorm", {"eps": "a"}, "norm.eps: invalid value 'a'; it should be a valid number"),
    ("model.norms.LayerNorm", {"eps": -1e-5}, "norm.eps: invalid value -1e-05; it should be at least 1e-30"),
    ("model.batchnorms.BatchNorm", {"momentum": 1.5}, "norm.momentum: invalid value 1.5"),
    ("model.norms.LayerNorm", {"bias": "x"}, "norm.bias: invalid value 'x'; it should be a valid "),
    ("model.norms.DynamicTanh", {"alpha": math.inf}, "norm.alpha: invalid value inf; it should be a finite"),
    ("torch.nn.Identity", {"eps": 1}, "norm.eps: .* has no such argument"),
    ("model.norms.Nope", {}, "norm._target_: .* cannot be imported"),
    ("nope.Nope", {}, "norm._target_: .* cannot be imported"),
    ("os.system", {}, "norm._target_: os.system is not a subclass of Module"),
    ("model.placements.Pre", {}, "is not a subclass of Module"),
]


@pytest.mark.parametrize(("target", "options", "message"), REFUSED)
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


def test_the_line_of_an_error_in_a_users_module_is_named(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("import torch\nraise KeyError('no table')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"cannot be imported \(KeyError: 'no table', at mine\.py:2\)"):
        bind("norm", component("mine.Norm"))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("norm=layernorm +norm.normalized_shape=3", "norm=layernorm placement=pre: .*normalized_shape"),
        (
            "norm=groupnorm norm.num_groups=0",
            "norm=groupnorm placement=pre: .*num_groups = 0 does not divide",
        ),
        ("placement=mix placement.fraction=2", "placement=mix: .*fraction = 2.0 .* not between 0 and 1"),
        (
            "model.qk_norm=groupnorm model.n_head=64",
            "placement=pre model.qk_norm=groupnorm: .*num_groups = 4",
        ),
    ],
)
def test_an_error_of_a_class_is_one_line_that_names_the_norm_and_placement(overrides, message):
    def loss_of(net):
        return net(torch.zeros(2, 4, dtype=torch.long)).sum()

    with pytest.raises(ConfigError, match=message):
        build_and_try(configured(*overrides.split()), 9, device.choose("cpu", "fp32"), loss_of)


class Chooses(nn.Module):
    """A norm that chooses what is null: numbers, a truth value, and a number per channel."""

    def __init__(
        self, n: int, eps: float | None = None, centred: bool | None = None, scale: float | None = None
    ) -> None:
        super().__init__()
        self.eps, self.centred = eps or 1e-8, True
        self.scale = nn.Parameter(torch.full((n,), 1.0 if scale is None else scale))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


def test_what_a_norm_chose_is_recorded_if_it_is_one_number():
    norm = component(f"{__name__}.Chooses", eps=None, centred=None, scale=None)
    config = configured("model.n_layer=1", "model.n_embd=16").model_copy(update={"norm": norm})
    resolved = {key: value for key, value in resolved_auto(config).items() if key.startswith("norm.")}
    assert resolved == {"norm.eps": 1e-8, "norm.centred": True}
    assert isinstance(resolved["norm.centred"], bool)
    assert build_model(config, 9).final.scale.shape == (16,)
    sites = resolved_auto(configured("model.qk_norm=dyt", "model.final_norm=derf"))
    assert (sites["model.qk_norm.alpha"], sites["model.final_norm.alpha"]) == (1, 1)
