"""Sample text from a checkpoint.

    python sample.py                                          the newest run with a checkpoint, at its best
    python sample.py run=runs/NAME which=last prompt=ROMEO:   from another run's last checkpoint
    python sample.py init_from=gpt2                           from GPT-2, or a folder in its layout
    python sample.py num_samples=3 temperature=0.5            three texts; temperature 0 takes the likeliest

No other file is needed: the checkpoint holds the tokenizer and the config. All samples are drawn
together, as one batch; the first sample is printed while it is drawn."""

import codecs
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, islice, tee
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli import app
from cli.sample_schema import SampleConfig
from data import tokenizers
from rundir.checkpoint_file import Checkpoint
from system import terminal
from system.errors import CheckpointError, DataError
from system.files import LONGEST, small_text
from training import load_model

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from training.device import Compute

    LastLogits = Callable[[Tensor], Tensor]  # a window of tokens (B, n) -> logits of the next token (B, V)

# Torch is imported in functions, so that a wrong key or run is reported at once.

REFRESH = 0.05  # seconds between prints
SMALL = 3_000_000  # parameters; on a CPU, smaller models gain nothing from bf16 (measured with AVX512-BF16)


def read_prompt(config: SampleConfig, tokenizer: tokenizers.Tokenizer) -> "tuple[str, NDArray[Any]]":
    """Return the prompt and its tokens. Raises OSError, or DataError if a character cannot be encoded."""
    key = "prompt" if config.prompt_file is None else "prompt_file"
    try:
        text = small_text(Path(config.prompt_file), LONGEST) if config.prompt_file else config.prompt
        prompt = text or tokenizer.start
        return prompt, tokenizer.encode(prompt)
    except UnicodeDecodeError as error:
        raise DataError(f"{key}: byte at offset {error.start} is not UTF-8; convert the text") from None
    except DataError as error:
        raise DataError(f"{key}: {error}") from None
    except ValueError as error:  # more than LONGEST bytes
        raise DataError(f"{key}: {error}; give a shorter text") from None


def load_last_logits(
    config: SampleConfig, checkpoint: Checkpoint, vocab_size: int
) -> "tuple[LastLogits, Compute]":
    """Return the checkpoint's model as a function of a window of tokens, and the device and precision.

    ``precision=auto`` is resolved as in training, except that small models on a CPU use fp32: bf16 halves the
    bytes of weights that are read for each token, which is faster only if there are many weights."""
    import torch

    from model.generate import Decoder, agrees, uncached
    from training import device, memory

    compute = device.choose(config.device, config.precision)
    path, block_size = checkpoint.path, checkpoint.meta.config.model.block_size
    model = load_model.load_model(checkpoint, vocab_size, config.trust).eval()
    n_parameters = sum(p.numel() for p in model.parameters())
    if config.precision == "auto" and compute.device.type == "cpu" and n_parameters < SMALL:
        compute = device.Compute(compute.device, "fp32")
    device.set_switches(compute, None, checkpoint.meta.config.deterministic)
    with memory.explained_as(f"{path}: out of memory at {block_size=}; use a smaller model"):
        model.to(compute.device)
        can_cache = agrees(model, vocab_size)
    if can_cache:
        return Decoder(model, torch.bfloat16 if compute.precision == "bf16" else torch.float32), compute
    print("this norm cannot use the KV cache: every token recomputes the whole context", file=sys.stderr)
    return compute.autocast()(uncached(model)), compute


def draw(
    logits: "Tensor", temperature: float, top_k: int | None, top_p: float | None, uniform: "Tensor"
) -> "Tensor":
    """Draw a token from each row of logits (B, V), as (B,) int64: the first token at which the cumulative
    probability exceeds the row's random number, ``uniform`` (B, 1) in [0, 1), fp64.

    The logits are divided by temperature; 0 takes the largest logit. top_k keeps the k largest logits; top_p
    keeps the fewest tokens whose probabilities add up to p (nucleus sampling, Holtzman et al. 2020), after
    temperature and top_k."""
    import torch

    if temperature == 0:
        return logits.argmax(dim=-1)
    scores, tokens = logits.double(), None
    if top_k or top_p is not None:  # otherwise order does not matter, and sorting a large vocabulary is slow
        scores, tokens = scores.topk(min(top_k or scores.shape[-1], scores.shape[-1]))
    cumulative = (scores / max(temperature, 1e-99)).softmax(dim=-1).cumsum(dim=-1)  # below it: overflow
    total = cumulative[:, -1:]
    if top_p is not None:
        last_kept = (cumulative < top_p).sum(dim=-1, keepdim=True).clamp(max=cumulative.shape[-1] - 1)
        total = cumulative.gather(-1, last_kept)
    index = torch.searchsorted(cumulative[:, :-1].contiguous(), uniform * total, right=True)
    return (index if tokens is None else tokens.gather(-1, index))[:, 0]


def sample(
    config: SampleConfig, last_logits: "LastLogits", start: "Tensor", block_size: int
) -> Iterator[list[int]]:
    """Yield the next token of every sample, ``max_new_tokens`` times, after the prompt ``start`` (B, n)."""
    import torch

    from model.generate import generate
    from model.seeds import seed_for

    # each sample has its own random stream, so that its text depends on num_samples at most by rounding
    seeds = [seed_for(config.seed, "sample", number) for number in range(config.num_samples)]
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    uniform = torch.empty(config.num_samples, 1, dtype=torch.float64)
    rows = uniform.unbind()

    def choose(logits: "Tensor") -> "Tensor":  # (B, V) -> (B,)
        logits = logits.cpu()  # the only wait for a GPU
        if not logits.isfinite().all():
            raise CheckpointError("checkpoint: the model's logits are not finite; use another one")
        for row, generator in zip(rows, generators, strict=True):
            row.uniform_(generator=generator)
        return draw(logits, config.temperature, config.top_k, config.top_p, uniform)

    for tokens in islice(generate(last_logits, start, block_size, choose), config.max_new_tokens):
        yield tokens.tolist()


def show(prompt: str, tokenizer: tokenizers.Tokenizer, tokens: Iterable[int]) -> None:
    """Print a text while its tokens arrive, at most 20 times a second: a small model draws thousands of
    tokens a second, and printing each would take a third of the time."""
    characters = codecs.getincrementaldecoder("utf-8")(errors="replace")  # a token may end inside a character
    as_text = partial(terminal.escaped, keep="\n\t") if sys.stdout.isatty() else str
    print(as_text(prompt), end="", flush=True)
    unprinted, last_print = "", time.perf_counter()
    try:
        for token in tokens:
            unprinted += characters.decode(tokenizer.decode([token]))
            if time.perf_counter() - last_print > REFRESH:
                print(as_text(unprinted), end="", flush=True)
                unprinted, last_print = "", time.perf_counter()
    finally:  # also after an interruption
        print(as_text(unprinted + characters.decode(b"", final=True)), flush=True)


@app.command("sample", SampleConfig)
def main(config: SampleConfig) -> None:
    """Load the model that the config names, and print its samples."""
    with terminal.announced("loading the model", sys.stderr):
        checkpoint = load_model.load(config)
        tokenizer = tokenizers.from_spec(checkpoint.meta.tokenizer)
        prompt, ids = read_prompt(config, tokenizer)

        import torch

        from training.memory import explained_as

        last_logits, compute = load_last_logits(config, checkpoint, tokenizer.vocab_size)
    headline = f"{terminal.escaped(str(checkpoint.path))}, step {checkpoint.meta.step:,}"
    print(f"{headline}, {compute.device.type}, {compute.precision}", file=sys.stderr)

    with explained_as(f"num_samples: out of memory at {config.num_samples:,} samples; lower num_samples"):
        prompt_ids = torch.from_numpy(ids.astype("int64"))
        start = prompt_ids.expand(config.num_samples, -1)  # (B, n)
        start_time = time.perf_counter()
        tokens_of_all = sample(config, last_logits, start, checkpoint.meta.config.model.block_size)
        with terminal.announced("reading the prompt", sys.stderr):
            first = [*islice(tokens_of_all, 1)]
        stream, copy = tee(chain(first, tokens_of_all))
        show(prompt, tokenizer, (tokens[0] for tokens in stream))
        all_tokens = [*copy]  # for each position, the tokens of all samples
        seconds = time.perf_counter() - start_time  # for all samples
        for number in range(1, config.num_samples):
            print("---------------")
            show(prompt, tokenizer, (tokens[number] for tokens in all_tokens))
        total = config.num_samples * len(all_tokens)
        print(f"{total:,} tokens, {total / seconds:,.0f} tokens/s", file=sys.stderr)


if __name__ == "__main__":
    main()
