"""Every statistic equals a computation by hand, and measuring changes nothing."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model import GPT
from model.placements import Pre
from probe import metric_names, norm_maps, statistics
from probe.activations import Activations, without_effects
from probe.hooks import forward_hooks
from tests.conftest import AROUND, configured, daily
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


def batch() -> tuple[Tensor, Tensor]:
    idx = torch.randint(V, (B, T + 1), generator=torch.Generator().manual_seed(2))
    return idx[:, :-1], idx[:, 1:]


def loss_of(net: Callable[[Tensor], Tensor]) -> Tensor:
    x, y = batch()
    torch.manual_seed(3)  # for the dropout
    return F.cross_entropy(net(x).flatten(0, 1), y.flatten())


def measured(model: GPT, wanted: Callable[[str], bool] = EVERYTHING, **options: bool) -> dict[str, float]:
    with Activations(model, wanted, **options) as values:
        loss_of(without_effects(model)).backward()
    return statistics.on_host(values)


# by hand: the forward written out, every tensor kept, and formulas in fp64 -------------------------------


def tensors_of(model: GPT) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return each site's tensor, with its gradient, and each block's input, qkv and MLP units."""
    sites: dict[str, Tensor] = {}
    others: dict[str, Tensor] = {}

    def keep(name: str, x: Tensor) -> Tensor:
        x.retain_grad()
        sites[name] = x
        return x

    def normed(name: str, norm: nn.Module, x: Tensor) -> Tensor:
        if isinstance(norm, nn.Identity):
            return x
        keep(f"{name}.in", x)
        return keep(f"{name}.out", norm(x))

    def forward(idx: Tensor) -> Tensor:
        x = keep("embed", model.embed(idx))
        for i, block in enumerate(model.blocks):
            others[f"{i:02d}.input"] = x
            for kind in ("attn", "mlp"):
                r, name = getattr(block, kind), f"{i:02d}.{kind}"
                branch = r.c(normed(f"{name}.pre", r.pre, x))
                if kind == "attn":
                    qkv = others[f"{name}.qkv"] = r.branch.qkv(branch)
                    q, k, v = (part.view(B, T, 2, C // 2).transpose(1, 2) for part in qkv.split(C, dim=-1))
                    p = r.branch.attend.dropout
                    y = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
                    branch = r.branch.dropout(r.branch.proj(y.transpose(1, 2).reshape(B, T, C)))
                else:
                    units = others[f"{name}.units"] = r.branch.activation(r.branch.fc(branch))
                    branch = r.branch.dropout(r.branch.proj(units))
                added = keep(f"{name}.branch", r.b(normed(f"{name}.out", r.out, branch)) * 1)
                others[f"{name}.skip"] = r.a(x)
                x = normed(f"{name}.post", r.post, r.a(x) + added)
                x = keep(name, x * 1)  # a separate tensor even without a norm
        others["final.in"] = x
        x = keep("final", model.final(x) * 1)
        return model.head(x)

    loss_of(forward).backward()
    return sites, others


def by_hand(model: GPT) -> dict[str, float]:
    """Return every statistic, computed in fp64."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    sites, others = tensors_of(model)
    for name, buffer in model.named_buffers():
        buffer.copy_(buffers[name])
    arrays = {name: x.detach().double().numpy() for name, x in (sites | others).items()}
    by_name: dict[str, float] = {}
    for site, tensor in sites.items():
        x = arrays[site].ravel()
        centred = x - x.mean()
        by_name |= {f"act.mean/{site}": x.mean(), f"act.std/{site}": x.std()}
        by_name |= {f"act.rms/{site}": math.sqrt((x @ x) / x.size), f"act.max_abs/{site}": np.abs(x).max()}
        by_name[f"act.kurtosis/{site}"] = (centred**4).mean() / x.var() ** 2
        g = tensor.grad.double().numpy().ravel()
        by_name[f"grad.rms/{site}"] = math.sqrt((g @ g) / g.size)
    for i in range(len(model.blocks)):
        x, y = (arrays[name].reshape(-1, C) for name in (f"{i:02d}.input", f"{i:02d}.mlp"))
        lengths = np.sqrt((x * x).sum(1) * (y * y).sum(1))
        by_name[f"act.cosine/{i:02d}"] = ((x * y).sum(1) / lengths).mean()
        for kind in ("attn", "mlp"):
            branch, skip = (arrays[f"{i:02d}.{kind}.{part}"].reshape(-1, C) for part in ("branch", "skip"))
            ratios = np.sqrt((branch**2).sum(1)) / np.sqrt((skip**2).sum(1))
            by_name[f"act.ratio/{i:02d}.{kind}.branch"] = ratios.mean()
        entropies, logits = [], []
        qkv = arrays[f"{i:02d}.attn.qkv"].reshape(B, T, 3, 2, C // 2)
        for row in range(B):
            for head in range(2):
                for t in range(T - 1, -1, -2):  # every second of 20 positions
                    q, k = qkv[row, t, 0, head], qkv[row, : t + 1, 1, head]
                    scores = k @ q / math.sqrt(C // 2)
                    p = np.exp(scores - scores.max())
                    p /= p.sum()
                    entropies.append(-(p * np.log(p)).sum())
                    logits.append(scores.max())
        by_name[f"attn.entropy/{i:02d}.attn"] = np.mean(entropies)
        by_name[f"attn.max_logit/{i:02d}.attn"] = max(logits)
        by_name[f"mlp.dead/{i:02d}.mlp"] = (
            (arrays[f"{i:02d}.mlp.units"].reshape(B * T, -1) <= 0).all(0).mean()
        )
    for site, module in norm_maps.norms(model).items():
        x = arrays[f"{site}.in"]
        if getattr(module, "weight", None) is not None:
            by_name[f"norm.gain/{site}"] = module.weight.detach().double().abs().mean().item()
        if getattr(module, "alpha", None) is not None:
            alpha = module.alpha.detach().double().item()
            by_name[f"norm.saturation/{site}"] = (np.abs(alpha * x) > 2).mean()
            by_name[f"norm.alpha/{site}"] = abs(alpha)
        if getattr(module, "running_mean", torch.zeros(0)).shape == (C,):  # PositionBatchNorm's has T rows
            mean, var = module.running_mean.double().numpy(), module.running_var.double().numpy()
            gaps = (x.reshape(-1, C).mean(0) - mean) / np.sqrt(var)
            by_name[f"norm.mean_gap/{site}"] = math.sqrt((gaps**2).mean())
            gaps = np.log(x.reshape(-1, C).std(0) / np.sqrt(var))
            by_name[f"norm.std_gap/{site}"] = math.sqrt((gaps**2).mean())
    return {name: float(value) for name, value in by_name.items()}


BLOCK = ("", ".attn", ".mlp", ".attn.branch", ".mlp.branch")
STREAM_AND_BRANCHES = {"embed", "final", *(f"{i:02d}{part}" for i in range(2) for part in BLOCK)}


@pytest.mark.parametrize(("norm", "placement"), AROUND)
def test_every_statistic_is_what_fp64_gives_for_every_norm_and_placement(norm, placement):
    model = made(f"norm={norm}", f"placement={placement}", "model.dropout=0.1")
    values, expected = measured(model), by_hand(model)
    assert values.keys() == expected.keys() <= set(metric_names.all_names(2))
    assert {name.partition("/")[2] for name in values} >= STREAM_AND_BRANCHES
    if norm in ("dyt", "derf"):
        assert 0 < values["norm.saturation/01.mlp.pre"] < 1
    for name, value in values.items():
        near_zero = 1e-6 if name.startswith(("act.mean", "act.cosine")) else 0
        assert value == pytest.approx(expected[name], rel=1e-5, abs=near_zero), name


def test_in_bf16_statistics_are_taken_in_fp32():
    model = made()
    outputs = []
    keep = (model.blocks[0].attn.branch.qkv, lambda module, args, qkv: outputs.append(qkv))
    with forward_hooks([keep]), torch.autocast("cpu", torch.bfloat16):
        values = measured(model)
    assert outputs[0].dtype == torch.bfloat16
    q, k, _ = outputs[0].detach().double().view(B, T, 3, 2, C // 2).permute(2, 0, 3, 1, 4)
    scores = (q @ k.transpose(-2, -1) / math.sqrt(C // 2)).masked_fill(
        torch.ones(T, T).triu(1).bool(), -math.inf
    )
    p = scores[:, :, 1::2].softmax(-1)
    assert values["attn.entropy/00.attn"] == pytest.approx(-(p * p.log()).nansum(-1).mean().item(), rel=1e-5)
    assert values["attn.max_logit/00.attn"] == pytest.approx(scores[:, :, 1::2].max().item(), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("norm", "placement"), daily(AROUND, lambda number: number % 8 == 0, "long"))
def test_the_default_set_is_at_most_12_a_block(tiny, norm, placement):
    row = metric_rows(train_anew(tiny(f"norm={norm}", f"placement={placement}", "train.steps=1")))[0]
    block = [name for name in row if name.partition("/")[2].startswith("01")]
    assert 11 <= len(block) <= 12, block


def test_only_selected_names_are_measured():
    assert measured(made(), metric_names.selection(["act.rms/*.attn", "grad.rms"], ["01*"])).keys() == {
        "act.rms/01.attn",
        *(f"grad.rms/01.{site}" for site in ("attn", "mlp", "attn.branch", "mlp.branch")),
        *(f"grad.rms/01.{kind}.pre.{side}" for kind in ("attn", "mlp") for side in ("in", "out")),
    }
    assert measured(made(), metric_names.selection([], ["*"])) == {}


def test_attention_is_sampled_in_the_first_eight_rows():
    q, k = torch.randn(2, 20, 2, T, C // 2, generator=torch.Generator().manual_seed(4))
    for row, counts in ((8, False), (7, True)):
        other = q.clone()
        other[row] *= 2
        assert (statistics.entropy(q, k) != statistics.entropy(other, k)) == counts


@pytest.mark.parametrize(
    "attributes",
    [
        {"running_mean": torch.zeros(T, C), "running_var": torch.ones(T, C)},
        {"alpha": torch.ones(T, 1)},
        {"weight": nn.Linear(C, C)},
    ],
)
def test_a_norms_tensor_of_another_meaning_is_not_measured(attributes):
    norm = nn.Identity()
    for name, value in attributes.items():
        setattr(norm, name, value)
    x = torch.zeros(B, T, C)
    assert not any(statistics.tensors_of(norm, names, x) for _, names in statistics.NORM_INTERNALS.values())


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
    model = GPT(**sizes, norm=nn.LayerNorm, placement=OwnPlacement)
    values = measured(model)
    assert {name.partition("/")[2] for name in values} == {"embed", "00.attn", "00.mlp", "00", "final"}


def test_a_histogram_counts_the_stream():
    model = made("norm=none")
    values = measured(model, metric_names.selection([], []), histograms=True)
    assert set(values) == {
        f"hist.act/{s}" for s in ("embed", "final", "00.attn", "00.mlp", "01.attn", "01.mlp")
    }
    x = tensors_of(model)[0]["01.attn"].detach().numpy().ravel()
    table = values["hist.act/01.attn"]
    counts, _ = np.histogram(x, bins=statistics.BINS, range=(table["low"], table["high"]))
    assert (table["low"], table["high"], table["nonfinite"]) == (x.min(), x.max(), 0)
    assert sum(table["counts"]) == x.size
    assert np.abs(np.array(table["counts"]) - counts).sum() <= 4  # numbers on the edge of a bin


# without effects -----------------------------------------------------------------------------------------


def test_an_error_removes_the_hooks_too():
    model = made()
    with pytest.raises(ZeroDivisionError), Activations(model, EVERYTHING):
        raise ZeroDivisionError
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch warns about its own code
@pytest.mark.parametrize("compiled", daily(["false", "true"], others="long"))
@pytest.mark.parametrize("norm", ["layernorm", "batchnorm"])
def test_training_has_the_same_bits_with_and_without_statistics(tiny, norm, compiled):
    base = (f"norm={norm}", f"compile={compiled}")
    base += ("train.steps=11", "model.dropout=0.2", "train.grad_accum=2")
    without = final_tensors(train_anew(tiny(*base, "stats.every=0")))
    for cadence in (("stats.every=1", "stats=all", "stats.histograms_every=2"), ("stats.every=3",), ()):
        folder = train_anew(tiny(*base, *cadence))
        assert read_json(folder / "environment.json")["compile"] is (compiled == "true")
        assert same_tensors(final_tensors(folder), without)
        rows = sum("act.rms/embed" in row for row in metric_rows(folder))  # the last one is after training
        assert rows == {3: 12, 1: 5, 0: 2}[len(cadence)]  # the second at 0, 3, 6, 9, 11
    if norm == "batchnorm":
        assert {int(t) for name, t in without.items() if "num_batches" in name} == {11 * 2}


def test_statistics_are_those_of_the_first_micro_batch(tiny):
    single = metric_rows(train_anew(tiny("train.batch_size=4", "train.steps=1", "stats=all")))[0]
    more = ("train.batch_size=16", "train.grad_accum=4")
    four = metric_rows(train_anew(tiny(*more, "train.steps=1", "stats=all")))[0]
    names = [name for name in single if name.startswith(("act.", "attn.", "mlp.", "norm.", "grad.rms"))]
    assert len(names) > 100
    assert {name: single[name] for name in names} == {name: four[name] for name in names}


def test_histograms_have_a_cadence_of_their_own_and_the_logged_share_is_measured(tiny):
    logged = metric_rows(train_anew(tiny("stats.every=2", "stats.histograms_every=4")))
    assert [row["step"] for row in logged if "hist.act/embed" in row] == [0, 4, 6]
    for row in logged[:-1]:  # after the last no step follows
        assert ("stats/overhead" in row) == ("act.rms/embed" in row)
    assert all(0 < row["stats/overhead"] < 100 for row in logged if "stats/overhead" in row)
