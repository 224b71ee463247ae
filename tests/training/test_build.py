"""A config names a class and its arguments; a checkpoint may name trusted classes only."""

import math

import pytest
import torch

from cli.schema import Component
from data.errors import ConfigError
from model.norms import LayerNorm
from tests.conftest import configured
from training import device
from training.build import OWN_PACKAGES, bind, build_and_try, resolved_auto


def component(target: str, **options) -> Component:
    return Component.model_validate({"_name_": "x", "_target_": target} | options)


def test_a_component_is_bound_to_its_options():
    norm = bind("norm", component("model.norms.LayerNorm", eps=0.5, bias=False))(7)
    assert isinstance(norm, LayerNorm)
    assert (norm.eps, norm.bias, norm.normalized_shape) == (0.5, None, (7,))


LAYER_NORM = "model.norms.LayerNorm"
REFUSED = [
    (LAYER_NORM, {"epss": 1}, "norm.epss: .* has no such argument; it has normalized_shape, eps"),
    (LAYER_NORM, {"eps": "a"}, "norm.eps: invalid value 'a'; it should be a valid number"),
    (LAYER_NORM, {"eps": -1e-5}, "norm.eps: invalid value -1e-05; it should be at least"),
    ("model.norms.DynamicTanh", {"alpha": math.inf}, "norm.alpha: invalid value inf; it should be a finite"),
    ("torch.nn.Identity", {"eps": 1}, "norm.eps: .* has no such argument"),
    ("model.norms.Nope", {}, "norm._target_: .* cannot be imported"),
    ("nope.Nope", {}, "norm._target_: .* cannot be imported"),
    ("os.system", {}, "norm._target_: os.system is not a subclass of Module"),
]


def test_options_that_do_not_fit_are_refused():
    for target, options, message in REFUSED:
        with pytest.raises(ConfigError, match=message):
            bind("norm", component(target, **options))


def test_a_checkpoint_names_only_our_classes_and_torchs_modules():
    for target in ("os.system", "subprocess.Popen", "mine.Norm", "modelling.X", "torch.load"):
        with pytest.raises(ConfigError, match=f"add trust={target.split('.')[0]}"):
            bind("norm", component(target), OWN_PACKAGES)
    for target in (LAYER_NORM, "torch.nn.LayerNorm"):
        bind("norm", component(target), OWN_PACKAGES)


def test_the_line_of_an_error_in_a_users_module_is_named(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("import torch\nraise KeyError('no table')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"cannot be imported \(KeyError: 'no table', at mine\.py:2\)"):
        bind("norm", component("mine.Norm"))


def test_an_error_of_a_class_is_one_line_that_names_the_norm_and_placement():
    for overrides, message in {
        "norm=groupnorm norm.num_groups=0": "norm=groupnorm placement=pre: .*num_groups = 0 does not divide",
        "placement=mix placement.fraction=2": "placement=mix: .*fraction = 2.0 .* not between 0 and 1",
        "model.qk_norm=groupnorm model.n_head=64": "pre model.qk_norm=groupnorm: .*num_groups = 4",
    }.items():
        config = configured(*overrides.split())
        with pytest.raises(ConfigError, match=message):
            build_and_try(
                config, 9, device.choose("cpu", "fp32"), lambda net: net(torch.zeros(2, 4).long()).sum()
            )


def test_what_a_norm_of_a_site_chose_is_recorded():
    sites = resolved_auto(configured("model.qk_norm=dyt", "model.final_norm=derf"))
    assert (sites["model.qk_norm.alpha"], sites["model.final_norm.alpha"]) == (1, 1)
