"""Properties of every norm in every placement; new files in conf/norm and conf/placement are included."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from model import GPT
from probe.causality import MODES, certificate
from tests.conftest import AROUND, NORMS, PLACEMENTS, configured, daily
from tests.helpers.model import SMALL_KEYS, assert_all_close, random_tokens
from tests.helpers.norm_leaks import SEES
from training.build import bind, build_model

V, T, B = 11, 8, 4  # as in SMALL_KEYS
PAIRS = list(itertools.product(NORMS, PLACEMENTS))


def made(norm: str, placement: str) -> GPT:
    """Build the model of this pair; norm and placement are composed separately, as Hydra is slow."""
    halves = ["placement.fraction=0.5"] if placement == "mix" else []  # one of two blocks each
    config = configured(f"norm={norm}", *SMALL_KEYS, "model.bias=true")
    other = configured(f"placement={placement}", *halves)
    return build_model(config.model_copy(update={"placement": other.placement}), V)


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")  # torch's RMSNorm, in bf16
@pytest.mark.parametrize(
    ("norm", "placement"), daily(PAIRS, lambda number: PAIRS[number] in AROUND, others="long")
)
def test_logits_and_all_gradients_are_finite_and_module_names_never_differ(norm, placement):
    model, tokens = made(norm, placement), random_tokens(B, T + 1)
    names, usual = ([name for name, _ in each.named_modules()] for each in (model, made("layernorm", "pre")))
    assert names == usual
    for autocast in (False, True):
        for _ in range(2):  # running estimates are used from the second batch on
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                logits = model(tokens[:, :-1])
            assert logits.shape == (B, T, V)
            assert logits.dtype == (torch.bfloat16 if autocast else torch.float32)
            model.zero_grad()
            F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten()).backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize(
    ("norm", "placement"),
    daily(PAIRS, lambda number: number % 8 == 0, lambda number: "slow" if number % 2 else "long"),
)
def test_a_norm_leaks_in_training_what_it_is_known_to_leak_and_nothing_else(norm, placement):
    model = made(norm, placement)
    kind = bind("norm", configured(f"norm={norm}").norm).func
    has_norm = any(isinstance(module, kind) for module in model.modules())
    measured = certificate(model, V, (random_tokens(8, T), random_tokens(8, T, seed=1)))
    assert (measured["reason"], measured["varies"]) == (None, [])
    for mode, what in itertools.product(MODES, ("future", "rows")):
        leaks = mode == "train" and what in SEES.get(norm, set()) and has_norm
        effect, gradient = measured[mode][what], measured[mode].get(f"{what}_gradient")
        assert (effect > 1e-3) == leaks, mode
        assert gradient is None or (gradient > 0) == leaks  # asked in training only
        assert leaks or effect == 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch warns about its own code
@pytest.mark.parametrize(
    "backend",
    [pytest.param("aot_eager", marks=pytest.mark.slow), pytest.param("inductor", marks=pytest.mark.long)],
)
@pytest.mark.parametrize("norm", [*NORMS, "detached"])
def test_compiled_in_one_piece_it_is_the_same_function(norm, backend):
    """Over three steps, as a compiler may compute 1/σ again in the backward: if running estimates were
    changed in place in between, torch 2.13 would silently take the new ones."""
    torch._dynamo.reset()
    words = ["norm=layernorm", "norm.detach_statistics=true"] if norm == "detached" else [f"norm={norm}"]
    config = configured(*words, *SMALL_KEYS, "model.n_layer=1")
    models = [build_model(config, V).double() for _ in range(2)]  # fp32 would round
    nets = models[0], torch.compile(models[1], backend=backend, fullgraph=True)
    for seed in range(3):
        tokens, results = random_tokens(B, T, seed), []
        for model, net in zip(models, nets, strict=True):
            net(tokens).square().sum().backward()
            results.append([*(p.grad for p in model.parameters()), *model.buffers()])
        assert_all_close(*results, 1e-9)
