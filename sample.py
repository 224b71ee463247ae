"""Sample text from a checkpoint.

    python sample.py                                          the best checkpoint of the newest run
    python sample.py run=runs/NAME which=last prompt=ROMEO:   from another run's last checkpoint
    python sample.py init_from=gpt2                           from GPT-2, or from a folder in its layout
    python sample.py num_samples=3 temperature=0.5            three texts; temperature 0 takes the likeliest

The checkpoint holds the tokenizer and the config, so no other file is needed. All samples are drawn as one
batch; the first sample is printed while it is drawn."""

import codecs
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice, tee
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.errors import CONF, one_line_errors
from cli.programs import read_literally
from cli.schema import SampleConfig
from data import tokenizers
from data.errors import CheckpointError, DataError
from training import load_run
from training.checkpoint import Checkpoint

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
        text = Path(config.prompt_file).read_text("utf-8") if config.prompt_file else config.prompt
        prompt = text or tokenizer.start
        return prompt, tokenizer.encode(prompt)
    except UnicodeDecodeError as error:
        raise DataError(f"{key}: byte at offset {error.start} is not UTF-8; convert the text") from None
    except DataError as error:
        raise DataError(f"{key}: {error}") from None


def load_last_logits(
    config: SampleConfig, checkpoint: Checkpoint, vocab_size: int
) -> "tuple[LastLogits, Compute]":
    """Return the checkpoint's model, as a function of a window of tokens, and its device and precision.

    ``precision=auto`` is resolved as in training, except that small models on a CPU use fp32. Every token
    reads all weights; bf16 halves their bytes, which saves time only if there are many weights."""
    import torch

    from model.generate import Decoder, agrees, uncached
    from training import device

    compute = device.choose(config.device, config.precision)
    path, block_size = checkpoint.path, checkpoint.meta.config.model.block_size
    model = load_run.load_model(checkpoint, vocab_size, config.trust).eval()
    n_parameters = sum(p.numel() for p in model.parameters())
    if config.precision == "auto" and compute.device.type == "cpu" and n_parameters < SMALL:
        compute = device.Compute(compute.device, "fp32")
    device.set_switches(None, checkpoint.meta.config.deterministic)
    with device.memory_explained(f"{path}: out of memory at {block_size=}; use a smaller model"):
        model.to(compute.device)
        can_cache = agrees(model, vocab_size)
    if can_cache:
        return Decoder(model, torch.bfloat16 if compute.precision == "bf16" else torch.float32), compute
    print("this norm cannot use the KV cache: every token recomputes the whole context", file=sys.stderr)
    return compute.autocast()(uncached(model)), compute


def sample(
    config: SampleConfig, last_logits: "LastLogits", start: "Tensor", block_size: int
) -> Iterator[list[int]]:
    """Yield the next token of every sample, ``max_new_tokens`` times, after the prompt ``start`` (B, n)."""
    import torch

    from model.generate import draw, generate
    from model.seeds import seed_for

    # each sample has its own random stream: num_samples changes its text by rounding at most
    seeds = [seed_for(config.seed, "sample", number) for number in range(config.num_samples)]
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    uniform = torch.empty(config.num_samples, 1, dtype=torch.float64)
    rows = uniform.unbind()

    def choose(logits: "Tensor") -> "Tensor":  # (B, V) -> (B,)
        logits = logits.cpu()  # the only wait for a GPU
        if not logits.isfinite().all():
            raise CheckpointError("checkpoint: the model's logits are not finite; use another checkpoint")
        for row, generator in zip(rows, generators, strict=True):
            row.uniform_(generator=generator)
        return draw(logits, config.temperature, config.top_k, config.top_p, uniform)

    for tokens in islice(generate(last_logits, start, block_size, choose), config.max_new_tokens):
        yield tokens.tolist()


def show(prompt: str, tokenizer: tokenizers.Tokenizer, tokens: Iterable[int]) -> None:
    """Print a text while its tokens arrive, at most 20 times a second. A small model draws thousands of
    tokens a second; printing each of them would take a third of the time."""
    characters = codecs.getincrementaldecoder("utf-8")(errors="replace")  # a token may end inside a character
    print(prompt, end="", flush=True)
    unprinted, last_print = "", time.perf_counter()
    try:
        for token in tokens:
            unprinted += characters.decode(tokenizer.decode([token]))
            if time.perf_counter() - last_print > REFRESH:
                print(unprinted, end="", flush=True)
                unprinted, last_print = "", time.perf_counter()
    finally:  # also after an interruption
        print(unprinted + characters.decode(b"", final=True), flush=True)


def main(config: SampleConfig) -> None:
    """Load the model that the config names, and print its samples."""
    checkpoint = load_run.load(config)
    tokenizer = tokenizers.from_spec(checkpoint.meta.tokenizer)
    prompt, ids = read_prompt(config, tokenizer)

    import torch

    from training.device import memory_explained

    last_logits, compute = load_last_logits(config, checkpoint, tokenizer.vocab_size)
    headline = f"{checkpoint.path}, step {checkpoint.meta.step:,}, {compute.device.type}, {compute.precision}"
    print(headline, file=sys.stderr)

    with memory_explained(f"num_samples: out of memory at {config.num_samples:,} samples; lower num_samples"):
        prompt_ids = torch.from_numpy(ids.astype("int64"))
        start = prompt_ids.expand(config.num_samples, -1)  # (B, n)
        start_time = time.perf_counter()
        stream, copy = tee(sample(config, last_logits, start, checkpoint.meta.config.model.block_size))
        show(prompt, tokenizer, (tokens[0] for tokens in stream))
        all_tokens = [*copy]  # for each position, the tokens of all samples
        seconds = time.perf_counter() - start_time  # for all samples
        for number in range(1, config.num_samples):
            print("---------------")
            show(prompt, tokenizer, (tokens[number] for tokens in all_tokens))
        total = config.num_samples * len(all_tokens)
        print(f"{total:,} tokens, {total / seconds:,.0f} tokens/s", file=sys.stderr)


if __name__ == "__main__":
    with one_line_errors():
        main(read_literally(SampleConfig, CONF / "sample.yaml", __doc__))
