"""The names of all metrics, ``<kind>.<statistic>/<site>``, such as ``act.rms/03.mlp``.
docs/statistics.md defines each statistic. Torch is not imported here.

    site                      meaning, where LL is the number of a block, from 00
    embed                     output of the embedding, where the residual stream begins
    LL.attn  LL.mlp           residual stream after the branch is added
    LL.attn.branch            output of the branch, which is added to the stream
    LL.attn.pre.in  .out      input and output of a norm; also out.in, post.in, …
    LL.attn.pre               the norm itself
    LL                        the block
    final                     input of the head
"""

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache

# the keys of statistics.MOMENTS, as tests/diagnostics/test_metric_names.py verifies
MOMENTS = ("mean", "std", "rms", "max_abs", "kurtosis")
STATISTICS = (
    *(f"act.{moment}" for moment in MOMENTS),
    *("act.ratio", "act.cosine", "attn.entropy", "attn.max_logit", "mlp.dead"),
    *("norm.gain", "norm.alpha", "norm.mean_gap", "norm.std_gap", "norm.saturation"),
    *("grad.rms", "grad.norm", "weight.norm", "update.ratio"),
)


@lru_cache(1)
def sites(n_layer: int) -> dict[str, list[str]]:
    """Return the sites of each statistic in a model of ``n_layer`` blocks, with whatever norm and
    placement."""
    blocks = [f"{i:02d}" for i in range(n_layer)]
    streams = [f"{block}.{kind}" for block in blocks for kind in ("attn", "mlp")]
    norms = [f"{stream}.{slot}" for stream in streams for slot in ("pre", "out", "post")]
    branches = [f"{stream}.branch" for stream in streams]
    sides = [f"{norm}.{side}" for norm in norms for side in ("in", "out")]
    tensors = ["embed", "final", *streams, *branches, *sides]
    by_statistic = {f"act.{moment}": tensors for moment in MOMENTS} | {
        "act.ratio": branches,
        "act.cosine": blocks,
        "mlp.dead": [f"{block}.mlp" for block in blocks],
        "grad.rms": tensors,
    }
    by_statistic |= {
        name: [f"{block}.attn" for block in blocks] for name in STATISTICS if name.startswith("attn.")
    }
    by_statistic |= {name: [*norms, "final"] for name in STATISTICS if name.startswith("norm.")}
    by_statistic |= {name: ["embed", *blocks] for name in ("grad.norm", "weight.norm", "update.ratio")}
    return {name: by_statistic[name] for name in STATISTICS}


def all_names(n_layer: int) -> list[str]:
    """Return every name that a model of ``n_layer`` blocks can have."""
    return [f"{name}/{site}" for name, all_sites in sites(n_layer).items() for site in all_sites]


def matches_any(pattern: str, n_layer: int) -> bool:
    """Return True if ``pattern`` matches a name of a model of ``n_layer`` blocks; fast at any depth."""
    name, slash, site_pattern = pattern.partition("/")
    return any(
        fnmatchcase(statistic, name)
        and any(fnmatchcase(site, site_pattern if slash else "*") for site in all_sites)
        for statistic, all_sites in sites(n_layer).items()
    )


def matches(name: str, pattern: str) -> bool:
    """Return True if a name matches a pattern such as ``act.rms/*.mlp``; ``act.rms`` matches at all sites."""
    return fnmatchcase(name, pattern if "/" in pattern else f"{pattern}/*")


def selection(metrics: Sequence[str], sites: Sequence[str]) -> Callable[[str], bool]:
    """Return a function that is True for the selected names: the name matches one of ``metrics``, and the
    site matches one of ``sites``. In both, * matches anything, including dots."""

    def is_wanted(name: str) -> bool:
        site = name.partition("/")[2]
        return any(matches(name, p) for p in metrics) and any(fnmatchcase(site, p) for p in sites)

    return is_wanted
