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

STATISTICS = (
    "act.mean act.std act.rms act.max_abs act.kurtosis act.ratio act.cosine "
    "attn.entropy attn.max_logit mlp.dead "
    "norm.gain norm.mean_gap norm.std_gap norm.saturation "
    "grad.rms grad.norm weight.norm update.ratio"
).split()


def known(pattern: str) -> bool:
    """Whether a pattern, as ``act.rms`` or ``act.*/*.mlp``, is of statistics that there are."""
    statistic = pattern.partition("/")[0]
    return any(fnmatchcase(name, statistic) for name in STATISTICS)


def selection(metrics: Sequence[str], sites: Sequence[str]) -> Callable[[str], bool]:
    """Whether a name is among those asked for: it fits one of ``metrics`` (one without a site means all
    sites), and its site one of ``sites``. In both * stands for anything, dots too."""
    wanted = [pattern if "/" in pattern else f"{pattern}/*" for pattern in metrics]

    def is_wanted(name: str) -> bool:
        site = name.partition("/")[2]
        return any(fnmatchcase(name, p) for p in wanted) and any(fnmatchcase(site, p) for p in sites)

    return is_wanted
