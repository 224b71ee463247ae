"""Adversarial modules for a test of leaks in model.GPT: LEAKS and PUBLISHED leak, CAUSAL do not.

Each entry has the keyword arguments for ``model.GPT`` and ``needs``: what a test must do to find the leak
(LEAKS), or why a naive test may report a leak (CAUSAL). ``kwargs(entry)`` returns the arguments, defaults
included. If ``needs`` begins with "Debatable", the entry might belong in the other list.

In a leaking module's docstring, "from" introduces the tokens that leak and, last, when they leak.
"""

from functools import partial
from typing import Any

from torch import nn

from model.attention import CausalSelfAttention
from model.placements import Pre
from tests.helpers.leaks.between_rows import (
    AdaptAtTestTime,
    DynamicInt8,
    EvalMemory,
    GhostBatchNorm,
    HookedNorm,
    PrefixSharing,
    UpdateThenUse,
)
from tests.helpers.leaks.honest import Plain
from tests.helpers.leaks.odd import (
    AttributeCounter,
    BufferCounter,
    ChaoticNorm,
    ClockNorm,
    DeadNorm,
    HeadsNorm,
    HugeNorm,
    LazyTable,
    NaNNorm,
    NoisyNorm,
    NumpyNoise,
    OwnGenerator,
    OwnTokenEditor,
    PaddedFFTNorm,
    PythonNoise,
    RejectionNoise,
    RowIndexScale,
    StochasticDepth,
    TinyNorm,
    ZeroGated,
)
from tests.helpers.leaks.other_parts import CapacityMLP, DeepHourglass, PrefixAttend, SideChannel
from tests.helpers.leaks.over_time import (
    AutocastOnly,
    CompiledOnly,
    DetachedContext,
    Float32Only,
    GradOnly,
    InputEditor,
    LateSchedule,
    RollShift,
    SlowGate,
    StochasticContext,
    TimeInstanceNorm,
    TinyLeak,
)
from tests.helpers.leaks.published import Patches, PatchesShareMean, PRepBN, RowPairs


def norm(kind: type[nn.Module], needs: str, **others: Any) -> dict[str, Any]:
    """Return an entry for a norm in every place, or in those that ``others`` name."""
    return {"norm": kind, "needs": needs} | others


def kwargs(entry: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments for GPT: those of the entry; by default Plain and Pre."""
    return {"norm": Plain, "placement": Pre} | {key: value for key, value in entry.items() if key != "needs"}


LATER = "Exchange later tokens of a row, in any mode."
LEAKS: dict[str, dict[str, Any]] = {
    "time_instance": norm(TimeInstanceNorm, LATER),
    "roll_shift": norm(Plain, "Exchange the LAST token and look at position 0.", final_norm=RollShift),
    "detached": norm(DetachedContext, "Compare values, not gradients."),
    "tiny": norm(TinyLeak, "fp64 and a tolerance below 1e-9 of the logits' size."),
    "float32_only": norm(Float32Only, "A test in fp32, the dtype of training, not only in fp64."),
    "autocast_only": norm(AutocastOnly, "A test under torch.autocast."),
    "compiled_only": norm(CompiledOnly, "A test of torch.compile(model); backend='eager' is enough."),
    "grad_only": norm(GradOnly, "A test with gradients recorded, as training is."),
    "slow_gate": norm(SlowGate, "Two or more steps of training, or parameters moved at random."),
    "stochastic": norm(StochasticContext, "Many calls in training mode, in pairs of equal random numbers."),
    "late_schedule": norm(LateSchedule, "More than 30 calls in training mode before the test."),
    "input_editor": norm(InputEditor, "Test the model; the output of the norm alone is honest."),
    "ghost_batch": norm(GhostBatchNorm, "Exchange another row of the same 4; time is independent."),
    "dynamic_int8": norm(DynamicInt8, "Evaluation mode, several exchanges: the largest feature must change."),
    "prefix_sharing": norm(
        PrefixSharing, "Evaluation mode, rows with the same first token; exchange the first."
    ),
    "update_then_use": norm(UpdateThenUse, "Training mode, the same buffers before both calls; small, < 1%."),
    "test_time": norm(AdaptAtTestTime, "Evaluation mode, the same buffers before both calls."),
    "hooked": norm(HookedNorm, "Call the modules, not their forward, so that hooks run."),
    "eval_memory": norm(
        EvalMemory, "Debatable: evaluate two different batches, then the same third, and compare that."
    ),
    "prefix_attend": {
        "attention": partial(CausalSelfAttention, attend=PrefixAttend),
        "needs": "Exchange one of the tokens 1 to 7 and look before it.",
    },
    "capacity": {"mlp": CapacityMLP, "needs": "Exchange an EARLIER row, several tries, look at later rows."},
    "deep_hourglass": {
        "placement": DeepHourglass,
        "needs": "4 blocks or more; exchange token 2i+1, look at 2i.",
    },
    "side_channel": {"placement": SideChannel, "needs": LATER + " Each norm and branch alone is honest."},
}

PUBLISHED: dict[str, dict[str, Any]] = {  # not invented: tests/helpers/leaks/published.py has the sources
    **{
        f"patches_of_{size}": {
            "norm": partial(Patches, size=size),
            "needs": f"More cuts than every {size}th, or another first cut than 0.",
        }
        for size in (2, 3, 7, 42)
    },
    "patches_share_mean": norm(PatchesShareMean, "Cuts that are not all multiples of 3."),
    "row_pairs": norm(RowPairs, "Look at another row than 0 and 1; time is independent."),
    "prepbn": norm(PRepBN, "One of the calls in training after the first."),
    "prepbn_begun": {"norm": partial(PRepBN, done=6), "needs": "Training mode."},
}

SEEDS = "Two calls differ unless "
CAUSAL: dict[str, dict[str, Any]] = {
    "plain": norm(Plain, "Nothing; the reference."),
    "noisy": norm(NoisyNorm, SEEDS + "torch's generator is seeded before each, in evaluation too."),
    "numpy_noise": norm(NumpyNoise, SEEDS + "numpy's global generator is seeded before each."),
    "python_noise": norm(PythonNoise, SEEDS + "Python's generator is seeded before each."),
    "own_generator": norm(
        OwnGenerator, SEEDS + "both are first calls of equal copies; seeding does not help."
    ),
    "clock": norm(ClockNorm, "Two calls always differ: measure how far outputs of equal inputs differ."),
    "rejection_noise": norm(
        RejectionNoise, "Debatable: with one seed, other tokens shift the random numbers; statistics do not."
    ),
    "buffer_counter": norm(BufferCounter, SEEDS + "buffers are restored before each."),
    "attribute_counter": norm(AttributeCounter, SEEDS + "on equal copies; no buffer holds the count."),
    "lazy_table": norm(LazyTable, "Its attributes change in the first call, its function does not."),
    "row_index_scale": norm(RowIndexScale, "Rows in another order are not comparable."),
    "huge": norm(HugeNorm, "An absolute tolerance is too small."),
    "tiny_output": norm(TinyNorm, "Logits are about 1e-21."),
    "chaotic": norm(ChaoticNorm, "Differences of rounding, if unequal B or T bring any, become large."),
    "nan": norm(NaNNorm, "NaN ≠ NaN."),
    "own_token_editor": norm(OwnTokenEditor, "Changes its input; whoever reuses that input is misled."),
    "padded_fft": norm(PaddedFFTNorm, "Later tokens change the last digits (rounding)."),
    "heads": {"attention": partial(CausalSelfAttention, qk_norm=HeadsNorm), "needs": "Dimension 1 is heads."},
    "zero_gated": norm(ZeroGated, "The batch's mean is read, times 0; only inf or NaN would come through."),
    "dead": norm(DeadNorm, "Logits depend on nothing; a test that asks for SOME effect fails it."),
    "stochastic_depth": {"placement": StochasticDepth, "needs": SEEDS + "seeded; training mode only."},
}
