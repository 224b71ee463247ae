"""Every statistic equals scipy's or torch's in fp64, and measuring changes nothing."""

import math
from collections.abc import Callable

import pytest
import scipy.stats
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model import GPT
from model.placements import Pre
from probe import metric_names, norm_maps, statistics
from probe.activations import Activations, without_effects
from probe.hooks import buffers_kept, forward_hooks
from tests.conftest import AROUND, configured, daily
from tests.helpers.model import random_tokens
from tests.helpers.runs import final_tensors, metric_rows, same_tensors, train_anew
from training.build import build_model
from training.run_folder import read_json

V, B, T, C = 11, 6, 20, 16
SIZES = ("model.n_layer=2", "model.n_head=2", f"model.n_embd={C}", f"model.block_size={T}")
EVERYTHING = metric_names.selection(["*"], ["*"])


def made(*overrides: str) -> GPT:
    """Return a small model with every parameter away from its initial value, as after some training."""
    model = build_model(configured(*SIZES, *overrides), V)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p += 0.3 * torch.randn(p.shape, generator=generator)
        for buffer in model.buffers():
            if buffer.is_floating_point():
                buffer += torch.rand(buffer.shape, generator=generator)
    return model


def loss_of(net: Callable[[Tensor], Tensor]) -> Tensor:
    tokens = random_tokens(B, T + 1)
    torch.manual_seed(3)  # for the dropout
    return F.cross_entropy(net(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def measured(model: GPT, wanted: Callable[[str], bool] = EVERYTHING, **options: bool) -> dict[str, float]:
    with Activations(model, wanted, **options) as values:
        loss_of(without_effects(model)).backward()
    return statistics.on_host(values)


# by hand: the forward written out, every tensor kept, and the statistics of other libraries in fp64 ------


def tensors_of(model: GPT) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return each site's tensor, with its gradient; and each block's input, skips, qkv and MLP units."""
    sites: dict[str, Tensor] = {}
    others: dict[str, Tensor] = {}

    def keep(name: str, x: Tensor) -> Tensor:
        x.retain_grad()
        sites[name] = x
        return x

    def normed(name: str, norm: nn.Module, x: Tensor) -> Tensor:
        return x if isinstance(norm, nn.Identity) else keep(f"{name}.out", norm(keep(f"{name}.in", x)))

    def forward(idx: Tensor) -> Tensor:
        x = keep("embed", model.embed(idx))
        for i, block in enumerate(model.blocks):
            others[f"{i:02d}"] = x
            for kind in ("attn", "mlp"):
                r, name = getattr(block, kind), f"{i:02d}.{kind}"
                f, y = r.branch, r.c(normed(f"{name}.pre", r.pre, x))
                if kind == "attn":
                    others[name] = qkv = f.qkv(y)
                    q, k, v = qkv.view(B, T, 3, 2, C // 2).permute(2, 0, 3, 1, 4)
                    p = f.attend.dropout
                    y = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
                    y = y.transpose(1, 2).flatten(2)
                else:
                    others[name] = y = f.activation(f.fc(y))
                branch = keep(f"{name}.branch", r.b(normed(f"{name}.out", r.out, f.dropout(f.proj(y)))) * 1)
                others[f"{name}.skip"] = r.a(x)
                x = normed(f"{name}.post", r.post, r.a(x) + branch)
                x = keep(name, x * 1)  # a separate tensor even without a norm
        others["final.in"] = x
        return model.head(keep("final", model.final(x) * 1))

    with buffers_kept(model):
        loss_of(forward).backward()
    return sites, others


def attention_by_hand(qkv: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean entropy of the attention weights and the largest logit, of every second position."""
    q, k, _ = qkv.view(B, T, 3, 2, C // 2).permute(2, 0, 3, 1, 4)
    logits = (q @ k.mT / math.sqrt(C // 2)).masked_fill(torch.ones(T, T).triu(1).bool(), -math.inf)[
        :, :, 1::2
    ]
    return torch.distributions.Categorical(logits=logits).entropy().mean(), logits.max()


@torch.no_grad()
def by_hand(model: GPT, sites: dict[str, Tensor], others: dict[str, Tensor]) -> dict[str, float]:
    """Return every statistic, computed in fp64 from the result of ``tensors_of``."""
    exact = {name: x.double() for name, x in (others | sites).items()}
    expected: dict[str, float] = {}
    for site, tensor in sites.items():
        x, g = exact[site].flatten(), tensor.grad.double().flatten()
        expected |= {f"act.mean/{site}": x.mean(), f"act.std/{site}": x.std(correction=0)}
        expected |= {f"act.rms/{site}": x.norm() / x.numel() ** 0.5, f"act.max_abs/{site}": x.abs().max()}
        expected[f"act.kurtosis/{site}"] = scipy.stats.kurtosis(x.numpy(), fisher=False)
        expected[f"grad.rms/{site}"] = g.norm() / g.numel() ** 0.5
    for block in ("00", "01"):
        turned = F.cosine_similarity(others[block].double(), exact[f"{block}.mlp"], dim=-1)
        expected[f"act.cosine/{block}"] = turned.mean()
        entropy, largest = attention_by_hand(others[f"{block}.attn"].double())
        expected |= {f"attn.entropy/{block}.attn": entropy, f"attn.max_logit/{block}.attn": largest}
        dead = (others[f"{block}.mlp"] <= 0).all(1).all(0)
        expected[f"mlp.dead/{block}.mlp"] = dead.double().mean()
        for stream in (f"{block}.attn", f"{block}.mlp"):
            ratios = exact[f"{stream}.branch"].norm(dim=-1) / exact[f"{stream}.skip"].norm(dim=-1)
            expected[f"act.ratio/{stream}.branch"] = ratios.mean()
    for site, norm in norm_maps.norms(model).items():
        x = exact[f"{site}.in"]
        if getattr(norm, "weight", None) is not None:
            expected[f"norm.gain/{site}"] = norm.weight.double().abs().mean()
        if hasattr(norm, "alpha"):
            expected[f"norm.alpha/{site}"] = norm.alpha.abs()
            expected[f"norm.saturation/{site}"] = ((norm.alpha * x).abs() > 2).double().mean()
        if getattr(norm, "running_mean", torch.zeros(0)).shape == (C,):  # PositionBatchNorm's has T rows
            std, of_batch = norm.running_var.double().sqrt(), x.flatten(0, 1)
            gaps = (of_batch.mean(0) - norm.running_mean) / std
            expected[f"norm.mean_gap/{site}"] = gaps.square().mean().sqrt()
            gaps = (of_batch.std(0, correction=0) / std).log()
            expected[f"norm.std_gap/{site}"] = gaps.square().mean().sqrt()
    return {name: float(value) for name, value in expected.items()}


BLOCK = ("", ".attn", ".mlp", ".attn.branch", ".mlp.branch")
STREAM_AND_BRANCHES = {"embed", "final", *(f"{i:02d}{part}" for i in range(2) for part in BLOCK)}


@pytest.mark.parametrize(("norm", "placement"), AROUND)
def test_every_statistic_is_what_fp64_gives_for_every_norm_and_placement(norm, placement):
    model = made(f"norm={norm}", f"placement={placement}", "model.dropout=0.1")
    values, expected = measured(model), by_hand(model, *tensors_of(model))
    assert values.keys() == expected.keys() <= set(metric_names.all_names(2))
    assert {name.partition("/")[2] for name in values} >= STREAM_AND_BRANCHES
    for name, value in values.items():
        near_zero = 1e-6 if name.startswith(("act.mean", "act.cosine")) else 0
        assert value == pytest.approx(expected[name], rel=1e-5, abs=near_zero), name


def test_in_bf16_statistics_are_taken_in_fp32():
    model, outputs = made(), []
    keep = (model.blocks[0].attn.branch.qkv, lambda module, args, qkv: outputs.append(qkv))
    with forward_hooks([keep]), torch.autocast("cpu", torch.bfloat16):
        values = measured(model)
    assert outputs[0].dtype == torch.bfloat16
    entropy, largest = attention_by_hand(outputs[0].detach().double())
    assert values["attn.entropy/00.attn"] == pytest.approx(entropy.item(), rel=1e-5)
    assert values["attn.max_logit/00.attn"] == pytest.approx(largest.item(), rel=1e-5)


def test_only_selected_names_are_measured():
    assert measured(made(), metric_names.selection(["act.rms/*.attn", "grad.rms"], ["01*"])).keys() == {
        "act.rms/01.attn",
        *(f"grad.rms/01.{site}" for site in ("attn", "mlp", "attn.branch", "mlp.branch")),
        *(f"grad.rms/01.{kind}.pre.{side}" for kind in ("attn", "mlp") for side in ("in", "out")),
    }


def test_attention_is_sampled_in_the_first_eight_rows():
    q, k = torch.randn(2, 20, 2, T, C // 2, generator=torch.Generator().manual_seed(4))
    for row, counts in ((8, False), (7, True)):
        other = q.clone()
        other[row] *= 2
        assert (statistics.entropy(q, k) != statistics.entropy(other, k)) == counts


@pytest.mark.parametrize(("name", "value"), [("alpha", torch.ones(T, 1)), ("weight", nn.Linear(C, C))])
def test_a_norms_tensor_of_another_meaning_is_not_measured(name, value):
    norm = nn.Identity()
    setattr(norm, name, value)
    assert statistics.tensors_of(norm, (name,), torch.zeros(B, T, C)) is None


def test_a_wiring_of_the_users_own_is_measured_at_the_sites_that_it_has():
    class Wired(nn.Module):
        def __init__(self, branch: nn.Module) -> None:
            super().__init__()
            self.inner = branch

        def forward(self, x: Tensor) -> Tensor:
            return x + self.inner(x)

    class OwnPlacement(Pre):
        def __call__(self, branch, norm, layer, site):
            return Wired(branch)

    sizes = {"vocab_size": V, "block_size": T, "n_layer": 1, "n_head": 2, "n_embd": C}
    values = measured(GPT(**sizes, norm=nn.LayerNorm, placement=OwnPlacement))
    assert {name.partition("/")[2] for name in values} == {"embed", "00.attn", "00.mlp", "00", "final"}


def test_a_histogram_counts_the_stream():
    model = made("norm=none")
    values = measured(model, metric_names.selection([], []), histograms=True)
    streams = ("embed", "final", "00.attn", "00.mlp", "01.attn", "01.mlp")
    assert values.keys() == {f"hist.act/{site}" for site in streams}
    x, table = tensors_of(model)[0]["01.attn"].detach(), values["hist.act/01.attn"]
    assert (table["low"], table["high"], table["nonfinite"]) == (x.min(), x.max(), 0)
    expected = torch.histc(x, statistics.BINS)
    assert (torch.tensor(table["counts"]) - expected).abs().sum() <= 4  # numbers on the edge of a bin


# without effects -----------------------------------------------------------------------------------------


def test_an_error_removes_the_hooks_too():
    model = made()
    with pytest.raises(ZeroDivisionError), Activations(model, EVERYTHING):
        raise ZeroDivisionError
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch warns about its own code
@pytest.mark.parametrize("compiled", daily(["false", "true"], others="long"))
def test_training_has_the_same_bits_with_and_without_statistics(tiny, compiled):
    words = ("norm=batchnorm", "model.dropout=0.2", "train.grad_accum=2", f"compile={compiled}")
    without = final_tensors(train_anew(tiny(*words, "stats.every=0")))
    assert {int(t) for name, t in without.items() if "num_batches" in name} == {6 * 2}
    folder = train_anew(tiny(*words, "stats.every=1", "stats=all", "stats.histograms_every=2"))
    assert same_tensors(final_tensors(folder), without)
    assert read_json(folder / "environment.json")["compile"] is (compiled == "true")
    assert sum("act.rms/embed" in row for row in metric_rows(folder)) == 7  # also after training


def test_statistics_are_those_of_the_first_micro_batch(tiny):
    rows = []
    for size, micro_batches in ((4, 1), (16, 4)):
        words = (f"train.batch_size={size}", f"train.grad_accum={micro_batches}", "train.steps=1")
        row = metric_rows(train_anew(tiny(*words, "stats=all")))[0]
        kinds = ("act.", "attn.", "mlp.", "norm.", "grad.rms")
        rows.append({name: value for name, value in row.items() if name.startswith(kinds)})
    assert rows[0] == rows[1]
    assert len(rows[0]) > 100


def test_histograms_have_a_cadence_of_their_own_and_the_logged_share_is_measured(tiny):
    logged = metric_rows(train_anew(tiny("stats.every=2", "stats.histograms_every=4")))
    assert [row["step"] for row in logged if "hist.act/embed" in row] == [0, 4, 6]
    for row in logged[:-1]:  # after the last no step follows
        assert ("stats/overhead" in row) == ("act.rms/embed" in row)
    assert all(0 < row["stats/overhead"] < 100 for row in logged if "stats/overhead" in row)
