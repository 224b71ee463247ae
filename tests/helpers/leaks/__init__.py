"""Adversarial modules for a test of leaks in model.GPT: LEAKS and PUBLISHED leak, CAUSAL do not.

Each entry has the keyword arguments for ``model.GPT`` and ``needs``: what a test must do to find the leak
(LEAKS), or why a naive test may report a leak (CAUSAL). ``kwargs(entry)`` returns the arguments, defaults
included. If ``needs`` begins with "Debatable", the entry might belong in the other list.

In a leaking module's docstring, "from" introduces the tokens that leak and, last, when they leak.
"""

from functools import partial
from typing import Any

from torch import nn

from model.attention import Attend, CausalSelfAttention
from model.placements import Pre
from tests.helpers.leaks.between_rows import (
    ActNorm,
    AdaptAtTestTime,
    BatchWarmup,
    DecoderOnly,
    DistributedOnly,
    DynamicInt8,
    EvalMemory,
    FlattenedCumulative,
    GhostBatchNorm,
    GradientScale,
    GuidanceNorm,
    HookedNorm,
    ManyRowsNorm,
    MixupNorm,
    PrefixSharing,
    UpdateThenUse,
    WrongReshape,
)
from tests.helpers.leaks.honest import Plain
from tests.helpers.leaks.odd import (
    AttributeCounter,
    AttributePast,
    BatchSizeScale,
    BufferCounter,
    ChaoticNorm,
    ClockNorm,
    CumulativeNorm,
    DeadNorm,
    DoubleInside,
    FlatMask,
    FlippedSum,
    GradientOnly,
    HeadsNorm,
    HugeNorm,
    InPlaceSafe,
    LazyTable,
    LengthScale,
    NaNNorm,
    NoisyNorm,
    NumpyNoise,
    OwnGenerator,
    OwnTokenEditor,
    PaddedFFTNorm,
    PastBatches,
    PositionScale,
    PythonNoise,
    RejectionNoise,
    ReturnsBF16,
    RowIndexScale,
    StochasticDepth,
    TinyNorm,
    ZeroGated,
)
from tests.helpers.leaks.other_parts import (
    CapacityMLP,
    DeepHourglass,
    EarlyExit,
    KeyTimeNorm,
    MaxBeforeMask,
    MaxNormEmbedding,
    MixtureOfDepths,
    PrefixAttend,
    QuerySoftmax,
    SideChannel,
    SqueezeExcitePlacement,
    TopKBeforeMask,
)
from tests.helpers.leaks.over_time import (
    AutocastOnly,
    BeaconNorm,
    BF16Only,
    CentredWindowNorm,
    CircularFFTNorm,
    CompiledOnly,
    ConvSame,
    DetachedContext,
    Float32Only,
    GradOnly,
    InputEditor,
    LateSchedule,
    LongContextNorm,
    MedianClip,
    NoGradOnly,
    NormalizeDefaultDim,
    OneBitNorm,
    OverflowGuard,
    PatchNorm,
    RollShift,
    SharedExponent,
    SlowGate,
    StochasticContext,
    TimeInstanceNorm,
    TinyLeak,
    TrainedGate,
    TransposedGroupNorm,
)
from tests.helpers.leaks.published import Patches, PatchesShareMean, PRepBN, RowPairs


def norm(kind: type[nn.Module], needs: str, **others: Any) -> dict[str, Any]:
    """Return an entry for a norm in every place, or in those that ``others`` name."""
    return {"norm": kind, "needs": needs} | others


def attend(kind: type[Attend], needs: str) -> dict[str, Any]:
    """Return an entry for an ``Attend``."""
    return {"attention": partial(CausalSelfAttention, attend=kind), "needs": needs}


def kwargs(entry: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments for GPT: those of the entry; by default Plain and Pre."""
    return {"norm": Plain, "placement": Pre} | {key: value for key, value in entry.items() if key != "needs"}


LATER = "Exchange later tokens of a row, in any mode."
LEAKS: dict[str, dict[str, Any]] = {
    "time_instance": norm(TimeInstanceNorm, LATER),
    "normalize_default_dim": norm(NormalizeDefaultDim, LATER),
    "transposed_groupnorm": norm(TransposedGroupNorm, LATER),
    "patch": norm(
        PatchNorm, "Exchange a token that is not first in its 4; look at one before it in the same 4."
    ),
    "centred_window": norm(
        CentredWindowNorm, "Exchange token t+1 and look at t; each norm passed adds one step of reach."
    ),
    "circular_fft": norm(CircularFFTNorm, "Exchange the last tokens and look at the first ones."),
    "roll_shift": norm(Plain, "Exchange the LAST token and look at position 0.", final_norm=RollShift),
    "beacon": norm(
        Plain, "Look at position 0, 16, … and exchange one of the 15 tokens after it.", final_norm=BeaconNorm
    ),
    "long_context": norm(LongContextNorm, "Rows of 49 tokens or more."),
    "median_clip": norm(MedianClip, "Several exchanges: one must move the median of the sizes in the row."),
    "one_bit": norm(OneBitNorm, "Many exchanges of many tokens: one bit for each row must flip."),
    "detached": norm(DetachedContext, "Compare values, not gradients."),
    "tiny": norm(TinyLeak, "fp64 and a tolerance below 1e-9 of the logits' size."),
    "float32_only": norm(Float32Only, "A test in fp32, the dtype of training, not only in fp64."),
    "bf16_only": norm(BF16Only, "The model cast to bf16."),
    "autocast_only": norm(AutocastOnly, "A test under torch.autocast."),
    "compiled_only": norm(CompiledOnly, "A test of torch.compile(model); backend='eager' is enough."),
    "no_grad_only": norm(NoGradOnly, "A test under torch.no_grad() or inference_mode, as evaluation is."),
    "grad_only": norm(GradOnly, "A test with gradients recorded, as training is."),
    "trained_gate": norm(TrainedGate, "One step of training, or parameters moved at random."),
    "slow_gate": norm(SlowGate, "Two or more steps of training, or parameters moved at random."),
    "conv_same": norm(ConvSame, "One step of training, or parameters moved at random; exchange token t+1."),
    "stochastic": norm(StochasticContext, "Many calls in training mode, in pairs of equal random numbers."),
    "late_schedule": norm(LateSchedule, "More than 30 calls in training mode before the test."),
    "input_editor": norm(InputEditor, "Test the model; the output of the norm alone is honest."),
    "overflow_guard": norm(OverflowGuard, "An exchange with a token whose embedding is beyond 5."),
    "shared_exponent": norm(
        SharedExponent, "Several exchanges within 4 tokens: a power of 2 must be crossed."
    ),
    "ghost_batch": norm(GhostBatchNorm, "Exchange another row of the same 4; time is independent."),
    "many_rows": norm(ManyRowsNorm, "16 rows or more; time is independent."),
    "flattened": norm(
        FlattenedCumulative, "Exchange an EARLIER row and look at a later one; causal in time."
    ),
    "wrong_reshape": norm(WrongReshape, "Exchange another row, or later tokens."),
    "guidance": norm(
        GuidanceNorm, "An even number of rows; exchange one of the second half, look at the first."
    ),
    "mixup": norm(MixupNorm, "Training mode, the same random numbers, several seeds: rows are drawn."),
    "dynamic_int8": norm(DynamicInt8, "Evaluation mode, several exchanges: the largest feature must change."),
    "prefix_sharing": norm(
        PrefixSharing, "Evaluation mode, rows with the same first token; exchange the first."
    ),
    "update_then_use": norm(UpdateThenUse, "Training mode, the same buffers before both calls; small, < 1%."),
    "test_time": norm(AdaptAtTestTime, "Evaluation mode, the same buffers before both calls."),
    "actnorm": norm(
        ActNorm, "The first call of two equal fresh models; an attribute remembers, no buffer does."
    ),
    "batch_warmup": norm(BatchWarmup, "One of the first 10 calls in training mode."),
    "hooked": norm(HookedNorm, "Call the modules, not their forward, so that hooks run."),
    "distributed_only": norm(DistributedOnly, "torch.distributed initialized; one process is enough."),
    "decoder_only": norm(DecoderOnly, "Test model.generate.Decoder with 2 rows or more."),
    "eval_memory": norm(
        EvalMemory, "Debatable: evaluate two different batches, then the same third, and compare that."
    ),
    "gradient_scale": norm(
        GradientScale, "Debatable: forward and backward of two different batches, then compare a third."
    ),
    "key_time": {"attention": partial(CausalSelfAttention, qk_norm=KeyTimeNorm), "needs": LATER},
    "prefix_attend": attend(PrefixAttend, "Exchange one of the tokens 1 to 7 and look before it."),
    "query_softmax": attend(QuerySoftmax, LATER),
    "topk_before_mask": attend(TopKBeforeMask, "More than 8 tokens, several exchanges."),
    "max_before_mask": attend(
        MaxBeforeMask,
        "Debatable at the start (rounding); large weights, such as 50 × the initial ones, show it.",
    ),
    "mixture_of_depths": {"mlp": MixtureOfDepths, "needs": "Several exchanges: the choice must change."},
    "capacity": {"mlp": CapacityMLP, "needs": "Exchange an EARLIER row, several tries, look at later rows."},
    "max_norm": {
        "embedding": MaxNormEmbedding,
        "needs": "Two equal fresh models, as tables are changed in place. Exchange a later token that occurs "
        "nowhere else in the batch; look at the logits OF that token.",
    },
    "squeeze_excite": {"placement": SqueezeExcitePlacement, "needs": LATER},
    "deep_hourglass": {
        "placement": DeepHourglass,
        "needs": "4 blocks or more; exchange token 2i+1, look at 2i.",
    },
    "side_channel": {"placement": SideChannel, "needs": LATER + " Each norm and branch alone is honest."},
    "early_exit": {
        "placement": EarlyExit,
        "needs": "Evaluation mode, many exchanges: a threshold is crossed.",
    },
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
    "flat_mask": norm(FlatMask, SEEDS + "seeded, and with B and T the same."),
    "rejection_noise": norm(
        RejectionNoise, "Debatable: with one seed, other tokens shift the random numbers; statistics do not."
    ),
    "buffer_counter": norm(BufferCounter, SEEDS + "buffers are restored before each."),
    "attribute_counter": norm(AttributeCounter, SEEDS + "on equal copies; no buffer holds the count."),
    "past_batches": norm(PastBatches, SEEDS + "buffers are restored before each."),
    "attribute_past": norm(AttributePast, SEEDS + "on equal copies; no buffer holds the state."),
    "lazy_table": norm(LazyTable, "Its attributes change in the first call, its function does not."),
    "position_scale": norm(PositionScale, "Rows that are shifted in time are not comparable."),
    "length_scale": norm(LengthScale, "A prefix alone, or rows of unequal T, are not comparable."),
    "batch_size_scale": norm(BatchSizeScale, "A row alone and in a batch are not comparable."),
    "row_index_scale": norm(RowIndexScale, "Rows in another order are not comparable."),
    "huge": norm(HugeNorm, "An absolute tolerance is too small."),
    "tiny_output": norm(TinyNorm, "Logits are about 1e-21."),
    "chaotic": norm(ChaoticNorm, "Differences of rounding, if unequal B or T bring any, become large."),
    "nan": norm(NaNNorm, "NaN ≠ NaN."),
    "double_inside": norm(DoubleInside, "Another dtype inside."),
    "bf16_inside": norm(ReturnsBF16, "Coarse steps."),
    "in_place_safe": norm(InPlaceSafe, "In-place operations, on a copy."),
    "own_token_editor": norm(OwnTokenEditor, "Changes its input; whoever reuses that input is misled."),
    "cumulative": norm(CumulativeNorm, "Depends on EARLIER tokens, which is allowed."),
    "padded_fft": norm(PaddedFFTNorm, "Later tokens change the last digits (rounding)."),
    "flipped_sum": norm(FlippedSum, "Later tokens change the last digits (rounding)."),
    "gradient_only": norm(GradientOnly, "Gradients of earlier logits reach later tokens, values do not."),
    "heads": {"attention": partial(CausalSelfAttention, qk_norm=HeadsNorm), "needs": "Dimension 1 is heads."},
    "zero_gated": norm(ZeroGated, "The batch's mean is read, times 0; only inf or NaN would come through."),
    "dead": norm(DeadNorm, "Logits depend on nothing; a test that asks for SOME effect fails it."),
    "stochastic_depth": {"placement": StochasticDepth, "needs": SEEDS + "seeded; training mode only."},
}
