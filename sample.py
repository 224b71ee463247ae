"""Text from a checkpoint, token by token as it is drawn.

    python sample.py                                          from the newest run's best checkpoint
    python sample.py run=runs/NAME which=last prompt=ROMEO:   from another, with a beginning
    python sample.py init_from=gpt2                           from OpenAI's, or a folder of Hugging Face's
    python sample.py num_samples=3 temperature=0.5            several; tamer (0: the likeliest), or wilder

It needs only the checkpoint: the tokenizer and the config are inside. Samples are drawn side by side; the
first is printed as it grows.
"""

import codecs
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from cli import app
from cli.sample_schema import SampleConfig
from data import tokenizers
from rundir import checkpoint_file
from system import errors, terminal
from system.errors import DataError
from training.build import OURS
from training.load_model import load as load_chosen
from training.load_model import load_model

if TYPE_CHECKING:
    from torch import Tensor

    from training.device import Compute

    LastLogits = Callable[[Tensor], Tensor]  # a window of tokens (B, n) -> what comes next (B, V)


REFRESH = 0.05  # seconds between prints
SMALL = 3_000_000  # parameters: below, a CPU is not faster in bf16 (two cores, AVX512-BF16)


def draw(
    logits: "Tensor",
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    uniform: "Tensor",
) -> "Tensor":
    """One token for each row of logits (B, V): (B,), int64. By a random number of each row, uniform (B, 1) in
    [0, 1), fp64: the first token up to which that much of the probability is summed up.

    temperature divides the logits, and 0 takes the largest. top_k keeps the k largest; top_p the fewest whose
    probabilities add up to p (nucleus sampling, Holtzman et al. 2020), after temperature and top_k.
    """
    import torch

    if temperature == 0:
        return logits.argmax(dim=-1)
    kept, tokens = logits.double(), None
    if top_k or top_p is not None:  # else no order is needed, and to sort a large vocabulary takes long
        kept, tokens = kept.topk(min(top_k or kept.shape[-1], kept.shape[-1]))
    summed = (kept / max(temperature, 1e-99)).softmax(dim=-1).cumsum(dim=-1)  # below, it is infinite
    total = summed[:, -1:]
    if top_p is not None:
        enough = (summed < top_p).sum(dim=-1, keepdim=True).clamp(max=summed.shape[-1] - 1)
        total = summed.gather(-1, enough)
    rank = torch.searchsorted(summed[:, :-1].contiguous(), uniform * total, right=True)
    return (rank if tokens is None else tokens.gather(-1, rank))[:, 0]


def beginning(config: SampleConfig, tokenizer: tokenizers.Tokenizer) -> str:
    """The prompt. Raises DataError where its file cannot be read."""
    if config.prompt_file is not None:
        try:
            return Path(config.prompt_file).read_bytes().decode("utf-8") or tokenizer.start
        except OSError as error:
            raise DataError(f"prompt_file: {config.prompt_file}: {error.strerror}; check the path") from None
        except UnicodeDecodeError as error:
            raise DataError(
                f"prompt_file: {config.prompt_file}: byte at offset {error.start} is not UTF-8; convert it"
            ) from None
    return config.prompt or tokenizer.start


def load(
    config: SampleConfig, loaded: checkpoint_file.Checkpoint, vocab_size: int
) -> "tuple[LastLogits, Compute]":
    """What a checkpoint's model says comes next, and where and in which precision it computes.

    ``precision=auto`` is as in training, but on a CPU fp32 for small models: only where a token costs the
    reading of many weights is it worth that these have half of the bytes.
    """
    import torch

    from model.generate import Decoder, agrees, uncached
    from training import device, memory

    compute = device.choose(config.device, config.precision)
    packages = OURS + ((config.trust,) if config.trust else ())
    model = load_model(loaded, vocab_size, packages).to(compute.device).eval()
    n_parameters = sum(p.numel() for p in model.parameters())
    if config.precision == "auto" and compute.device.type == "cpu" and n_parameters < SMALL:
        compute = device.Compute(compute.device, "fp32")
    device.set_switches(compute, threads=None)
    block_size = loaded.meta.config.model.block_size
    with memory.explained_as(f"{loaded.path}: out of memory at block_size={block_size}; use a smaller model"):
        decodes = agrees(model, vocab_size)
    if decodes:
        return Decoder(model, torch.bfloat16 if compute.precision == "bf16" else torch.float32), compute
    print("keys and values cannot be kept: each token is computed anew from all of them", file=sys.stderr)
    last_logits = uncached(model)

    def autocast(window: "Tensor") -> "Tensor":
        with compute.autocast():
            return last_logits(window)

    return autocast, compute


@app.command("sample", SampleConfig)
def main(config: SampleConfig) -> None:
    loaded = load_chosen(config)
    import torch

    from model.generate import generate
    from model.seeds import seed_for

    try:
        tokenizer = tokenizers.from_spec(loaded.meta.tokenizer)
    except DataError as error:
        raise errors.CheckpointError(f"{loaded.path}: {error}") from None
    prompt = beginning(config, tokenizer)
    try:
        ids = tokenizer.encode(prompt)
    except DataError as error:
        raise DataError(f"{'prompt' if config.prompt_file is None else 'prompt_file'}: {error}") from None

    last_logits, compute = load(config, loaded, tokenizer.vocab_size)
    where = terminal.escaped(str(loaded.path))
    print(
        f"{where}, step {loaded.meta.step:,}, {compute.device.type}, {compute.precision}",
        file=sys.stderr,
    )

    # a stream of random numbers for each sample: the second's are the same whether there is a third or not
    streams = [seed_for(config.seed, "sample", sample) for sample in range(config.num_samples)]
    generators = [torch.Generator().manual_seed(stream) for stream in streams]
    uniform = torch.empty(config.num_samples, 1, dtype=torch.float64)
    rows = uniform.unbind()

    def choose(logits: "Tensor") -> "Tensor":  # (B, V) -> (B,)
        for row, generator in zip(rows, generators, strict=True):
            row.uniform_(generator=generator)
        drawn = draw(logits.cpu(), config.temperature, config.top_k, config.top_p, uniform)
        return drawn.to(logits.device)

    start = torch.from_numpy(ids.astype("int64")).expand(config.num_samples, -1).to(compute.device)  # (B, n)
    steps = generate(last_logits, start, loaded.meta.config.model.block_size, choose)
    tokens = (step.tolist() for step in islice(steps, config.max_new_tokens))
    began = time.perf_counter()
    others: list[list[int]] = [[] for _ in range(config.num_samples - 1)]

    def first() -> Iterator[int]:
        for one, *rest in tokens:
            for text, token in zip(others, rest, strict=True):
                text.append(token)
            yield one

    show(prompt, tokenizer, first())
    seconds = time.perf_counter() - began  # in which all samples grew
    for text in others:
        print("---------------")
        show(prompt, tokenizer, text)
    drawn = config.num_samples * config.max_new_tokens
    print(f"{drawn:,} tokens, {drawn / seconds:,.0f} tokens/s", file=sys.stderr)


def show(prompt: str, tokenizer: tokenizers.Tokenizer, tokens: Iterable[int]) -> None:
    """Print a text as its tokens come, what there is of them 20 times a second at most: a small model draws
    thousands, and to print each takes a third of its time."""
    characters = codecs.getincrementaldecoder("utf-8")(errors="replace")  # a token may end within one
    as_text = partial(terminal.escaped, keep="\n\t") if sys.stdout.isatty() else str
    print(as_text(prompt), end="", flush=True)
    new, printed = "", time.perf_counter()
    try:
        for token in tokens:
            new += characters.decode(tokenizer.decode([token]))
            if time.perf_counter() - printed > REFRESH:
                print(as_text(new), end="", flush=True)
                new, printed = "", time.perf_counter()
    finally:  # also where it is interrupted
        print(as_text(new + characters.decode(b"", final=True)), flush=True)


if __name__ == "__main__":
    main()
