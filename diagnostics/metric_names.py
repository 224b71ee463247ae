"""What can be measured, by name: ``<kind>.<statistic>/<site>``, as ``act.rms/03.mlp``. docs/statistics.md has
every definition.

    site                      what it is, LL being the block, from 00
    embed                     the embedding's output, where the residual stream begins
    LL.attn  LL.mlp           the stream after that branch
    LL.attn.branch            what the branch adds to the stream
    LL.attn.pre.in  .out      what goes into a norm and what comes out of it; also out.in, post.in, …
    LL.attn.pre               that norm itself
    LL                        the block
    final                     what the head is given

Torch is not imported here.
"""

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache

MOMENTS = ("mean", "std", "rms", "max_abs", "kurtosis")
STATISTICS = (
    *(f"act.{moment}" for moment in MOMENTS),
    *("act.ratio", "act.cosine", "attn.entropy", "attn.max_logit", "mlp.dead"),
    *("norm.gain", "norm.alpha", "norm.mean_gap", "norm.std_gap", "norm.saturation"),
    *("grad.rms", "grad.norm", "weight.norm", "update.ratio"),
)


@lru_cache(1)
def sites(n_layer: int) -> dict[str, list[str]]:
    """Where a model of so many blocks can have each statistic, whichever norms it has and wherever they
    stand."""
    blocks = [f"{i:02d}" for i in range(n_layer)]
    streams = [f"{block}.{kind}" for block in blocks for kind in ("attn", "mlp")]
    norms = [f"{stream}.{slot}" for stream in streams for slot in ("pre", "out", "post")]
    branches = [f"{stream}.branch" for stream in streams]
    tensors = [
        "embed",
        "final",
        *streams,
        *branches,
        *(f"{norm}.{side}" for norm in norms for side in ("in", "out")),
    ]
    found = {f"act.{moment}": tensors for moment in MOMENTS} | {
        "act.ratio": branches,
        "act.cosine": blocks,
        "mlp.dead": [f"{block}.mlp" for block in blocks],
        "grad.rms": tensors,
    }
    found |= {name: [f"{block}.attn" for block in blocks] for name in STATISTICS if name.startswith("attn.")}
    found |= {name: [*norms, "final"] for name in STATISTICS if name.startswith("norm.")}
    found |= {name: ["embed", *blocks] for name in ("grad.norm", "weight.norm", "update.ratio")}
    return {name: found[name] for name in STATISTICS}


def possible(n_layer: int) -> list[str]:
    """Every name that a model of so many blocks can have."""
    return [f"{name}/{site}" for name, there in sites(n_layer).items() for site in there]


def are_there(pattern: str, n_layer: int) -> bool:
    """Whether ``pattern`` means some name of such a model. However deep that is, it is told in a moment."""
    name, slash, site = pattern.partition("/")
    return any(
        fnmatchcase(statistic, name) and any(fnmatchcase(one, site if slash else "*") for one in there)
        for statistic, there in sites(n_layer).items()
    )


def fits(name: str, pattern: str) -> bool:
    """Whether a name is what a pattern means, as ``act.rms/*.mlp``; one without a site means all sites."""
    return fnmatchcase(name, pattern if "/" in pattern else f"{pattern}/*")


def selection(metrics: Sequence[str], sites: Sequence[str]) -> Callable[[str], bool]:
    """Whether a name is among those asked for: it fits one of ``metrics``, and its site one of ``sites``. In
    both
    * stands for anything, dots too."""

    def is_wanted(name: str) -> bool:
        site = name.partition("/")[2]
        return any(fits(name, p) for p in metrics) and any(fnmatchcase(site, p) for p in sites)

    return is_wanted
