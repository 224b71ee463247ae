"""What a run would need on GPUs: memory, what ranks send each other, tokens a second; and how long a sweep
takes. Nothing is measured here, it is arithmetic; docs/scaling.md has its formulas and its output.

    python -m bench.plan                                    GPT-2's sizes, on 8 GPUs like an A100
    python -m bench.plan --ranks 4 --rows 2 --flops 990e12 --reached 0.4
    python -m bench.plan --runs 600 --gpus 100 --tokens 2.5e9

P parameters, L layers, C channels, T context, V vocabulary, B rows of a rank's micro-batch, N ranks."""

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass

from bench.options import Parser, at_least_one
from bench.page import table
from bench.sizes import Size

GPT2 = {  # Radford et al. 2019, table 2
    name: Size(n_layer, heads, n_embd, 1024, 1, vocab_size=50_257)
    for name, n_layer, heads, n_embd in (
        ("124 M", 12, 12, 768),
        ("355 M", 24, 16, 1024),
        ("774 M", 36, 20, 1280),
        ("1.56 B", 48, 25, 1600),
    )
}
LINKS = {  # bytes a second that a GPU sends while it receives as many
    "NVLink 3 (300 GB/s)": 300e9,
    "PCIe 4 × 16 (32 GB/s)": 32e9,
    "100 Gb/s network": 12.5e9,
    "10 Gb/s network": 1.25e9,
}
FP32 = 4  # bytes of a parameter; its gradient and AdamW's two moments have as many each
BF16 = 2  # of the copy of each matrix that autocast makes for forward and backward
ACTIVATIONS = 36  # bytes that a backward needs, for a token, layer and channel: counted, bf16, no dropout
LOSS = 12  # bytes for a token and each of V: logits in fp32, their logarithm of softmax, its gradient


def around(size: Size) -> int:
    """Of P, what is in no block: 2·C + (V + T)·C."""
    return (2 + size.vocab_size + size.block_size) * size.n_embd


def parameters(size: Size) -> int:
    """P = 12·L·C² + 13·L·C + 2·C + (V + T)·C: matrices and biases, two LayerNorms a layer and a final one,
    the tied embedding, positions."""
    L, C = size.n_layer, size.n_embd
    return 12 * L * C**2 + 13 * L * C + around(size)


def state(size: Size, ranks: int, kind: str) -> float:
    """Bytes on each GPU besides activations: parameters, gradients and moments, and the copies in bf16.

    ddp: 16·P + 2·P; gradients that accumulate over micro-batches are 4·P more. fsdp: a step has 16·P/N, two
    blocks and the embedding whole, as parameters and as gradients, and the copies, 2·P; an evaluation has
    12·P/N, no gradients, and the whole model, 4·P, with its copies.
    """
    p, C = parameters(size), size.n_embd
    if kind == "ddp" or ranks == 1:
        return (4 * FP32 + BF16) * p
    gathered = 2 * 12 * C**2 + around(size)
    step = 4 * FP32 * p / ranks + 2 * FP32 * gathered
    return BF16 * p + max(step, 3 * FP32 * p / ranks + FP32 * p)


def activations(size: Size, rows: int) -> float:
    """Bytes, of a micro-batch: B·T·(36·L·C + 12·V)."""
    return rows * size.block_size * (ACTIVATIONS * size.n_layer * size.n_embd + LOSS * size.vocab_size)


def sent(size: Size, ranks: int, kind: str, micro_batches: int = 1) -> float:
    """Bytes that each rank sends in a step, by the ring algorithms that NCCL and gloo have for large tensors.

    ddp: one all-reduce of the gradients, 2·(N−1)/N · 4·P. fsdp: for each micro-batch an all-gather of the
    parameters for the forward, again one of those in blocks for the backward, and a reduce-scatter of the
    gradients, (N−1)/N · 4·(3·P − (2 + V + T)·C).
    """
    part, p = (ranks - 1) / ranks * FP32, parameters(size)
    return part * (2 * p if kind == "ddp" else micro_batches * (3 * p - around(size)))


@dataclass(frozen=True)
class Rates:
    """Tokens a second of all ranks: where computing hides all that is sent, and where it hides nothing."""

    hidden: float
    not_hidden: float


def rates(size: Size, ranks: int, kind: str, rows: int, flops: float, link: float) -> Rates:
    """``flops``: those that a GPU reaches, per second."""
    tokens = rows * size.block_size
    computing = tokens * size.flops_per_token / flops
    sending = sent(size, ranks, kind) / link if ranks > 1 else 0.0
    return Rates(ranks * tokens / max(computing, sending), ranks * tokens / (computing + sending))


def sweep_hours(runs: int, gpus: int, tokens: float, tokens_per_s: float) -> float:
    """⌈runs / GPUs⌉ · tokens / (tokens/s), a run on a GPU: its runs send each other nothing."""
    return math.ceil(runs / gpus) * tokens / tokens_per_s / 3600


def memory_table(asked: argparse.Namespace) -> Iterator[str]:
    counts = sorted({2, 4, asked.ranks})
    shards = [f"fsdp, {n} ranks" for n in counts if n > 1]
    yield f"Memory of each GPU in GB; activations of {asked.rows} rows, in bf16:"
    yield ""
    rows = []
    for name, size in GPT2.items():
        needs = [state(size, 1, "ddp"), *(state(size, n, "fsdp") for n in counts if n > 1)]
        rows.append([name, *(gigabytes(need) for need in (*needs, activations(size, asked.rows)))])
    yield from table(["parameters", "ddp", *shards, "activations"], rows)


def rates_table(asked: argparse.Namespace) -> Iterator[str]:
    reached = asked.flops * asked.reached
    yield (
        f"Tokens a second of {asked.ranks} ranks in thousands, each with {asked.rows} rows in a step and "
        f"{reached / 1e12:.0f} TFLOP/s, from nothing hidden to all; 1 rank has no one to send to:"
    )
    yield ""
    rows = []
    for name, size in GPT2.items():
        alone = rates(size, 1, "ddp", asked.rows, reached, math.inf).hidden
        for kind in ("ddp", "fsdp"):
            found = (rates(size, asked.ranks, kind, asked.rows, reached, link) for link in LINKS.values())
            megabytes = f"{sent(size, asked.ranks, kind) / 1e6:,.0f}"
            rows.append([name, kind, megabytes, f"{alone / 1e3:,.0f}", *map(thousands, found)])
    yield from table(["parameters", "", "sent a step, MB", "1 rank", *LINKS], rows)


def sweep_table(asked: argparse.Namespace) -> Iterator[str]:
    reached = asked.flops * asked.reached
    yield f"Hours of {asked.runs:,} runs of {asked.tokens:.2g} tokens, a run on a GPU:"
    yield ""
    counts = sorted({1, 8, asked.gpus})
    rows = []
    for name, size in GPT2.items():
        rate = rates(size, 1, "ddp", asked.rows, reached, math.inf).hidden
        hours = (sweep_hours(asked.runs, gpus, asked.tokens, rate) for gpus in counts)
        rows.append([name, *(f"{value:,.0f}" for value in hours)])
    yield from table(["parameters", *(f"{n} GPU{'s' * (n > 1)}" for n in counts)], rows)


def gigabytes(size: float) -> str:
    return f"{size / 1e9:.1f}"


def thousands(found: Rates) -> str:
    return f"{found.not_hidden / 1e3:,.0f} – {found.hidden / 1e3:,.0f}"


def main() -> None:
    parser = Parser(
        prog="python -m bench.plan",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--ranks", type=at_least_one, default=8, help="that train one run; 8")
    parser.add_argument("--rows", type=at_least_one, default=8, help="of a rank's micro-batch; 8")
    parser.add_argument("--flops", type=float, default=312e12, help="of a GPU in bf16; an A100's 312e12")
    parser.add_argument("--reached", type=float, default=0.3, help="part of them; 0.3")
    parser.add_argument("--gpus", type=at_least_one, default=100, help="for a sweep; 100")
    parser.add_argument("--runs", type=at_least_one, default=600, help="of the sweep; 600")
    parser.add_argument("--tokens", type=float, default=2.5e9, help="that each is trained on; 2.5e9")
    asked = parser.parse_args()
    for key in ("flops", "reached", "tokens"):
        if not 0 < getattr(asked, key) < math.inf:
            parser.error(f"--{key}: {getattr(asked, key)} is not above 0")
    for part in (memory_table, rates_table, sweep_table):
        print("\n".join(part(asked)))


if __name__ == "__main__":
    main()
