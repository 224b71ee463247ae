"""The names of all metrics, ``<kind>.<statistic>/<site>``, such as ``act.rms/03.mlp``.
docs/looking.md defines each statistic. Torch is not imported here.

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

# the keys of statistics.MOMENTS and NORM_INTERNALS, as tests/probe/test_metric_names.py verifies
MOMENTS = ("mean", "std", "rms", "max_abs", "kurtosis")
NORM_INTERNALS = ("gain", "alpha", "mean_gap", "std_gap", "saturation")
SLOTS = ("pre", "out", "post")  # where a branch may have a norm


@lru_cache(1)
def sites(n_layer: int) -> dict[str, list[str]]:
    """Return the sites of each statistic in a model of ``n_layer`` blocks, whatever its norm and
    placement."""
    blocks = [f"{i:02d}" for i in range(n_layer)]
    streams = [f"{block}.{kind}" for block in blocks for kind in ("attn", "mlp")]
    norms = [f"{stream}.{slot}" for stream in streams for slot in SLOTS]
    branches = [f"{stream}.branch" for stream in streams]
    tensors = [
        "embed",
        "final",
        *streams,
        *branches,
        *(f"{n}.{side}" for n in norms for side in ("in", "out")),
    ]
    attentions, mlps = streams[::2], streams[1::2]
    return {
        **{f"act.{moment}": tensors for moment in MOMENTS},
        "act.ratio": branches,
        "act.cosine": blocks,
        "attn.entropy": attentions,
        "attn.max_logit": attentions,
        "mlp.dead": mlps,
        **{f"norm.{internal}": [*norms, "final"] for internal in NORM_INTERNALS},
        "grad.rms": tensors,
        **{name: ["embed", *blocks] for name in ("grad.norm", "weight.norm", "update.ratio")},
    }


STATISTICS = tuple(sites(0))


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
    """Return a function that selects a name: it returns True if the name matches one of ``metrics`` and its
    site matches one of ``sites``. In both, * matches anything, including dots."""

    def is_wanted(name: str) -> bool:
        site = name.partition("/")[2]
        return any(matches(name, p) for p in metrics) and any(fnmatchcase(site, p) for p in sites)

    return is_wanted
