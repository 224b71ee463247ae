"""Text from a checkpoint, token by token as it is drawn.

    python sample.py                                          from the newest run's best checkpoint
    python sample.py run=runs/NAME which=last prompt=ROMEO:   from another, with a beginning
    python sample.py num_samples=3 temperature=0              the likeliest text (0), or wilder (above 1)

It needs only the checkpoint: the tokenizer and the config are inside.
"""

import codecs
import sys
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from data import DataError, tokenizers
from training import checkpoint, cli, runs
from training.components import OURS, load_model
from training.config import SampleConfig

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def draw(
    logits: "Tensor",
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    generator: "torch.Generator | None" = None,
) -> "Tensor":
    """One token for each row of logits (B, V): (B,), int64.

    temperature divides the logits, and 0 takes the largest. top_k keeps the k largest; top_p the fewest whose
    probabilities add up to p (nucleus sampling, Holtzman et al. 2020), after temperature and top_k.
    """
    import torch

    if temperature < 1e-6:  # below, fp32 cannot tell it from 0
        return logits.argmax(dim=-1)
    ordered, order = ((logits - logits.amax(-1, keepdim=True)) / temperature).sort(dim=-1, descending=True)
    if top_k is not None:
        ordered[:, top_k:] = -torch.inf
    probabilities = ordered.softmax(dim=-1)
    if top_p is not None:
        before = probabilities.cumsum(dim=-1) - probabilities  # of all that are likelier; 0 for the first
        probabilities[before >= top_p] = 0.0
    return order.gather(-1, torch.multinomial(probabilities, 1, generator=generator))[:, 0]


def find_checkpoint(config: SampleConfig) -> Path:
    """The file to sample from. Raises ConfigError or CheckpointError where there is none."""
    if config.checkpoint is not None:
        return Path(config.checkpoint)
    folder = Path(config.run) if config.run is not None else runs.newest_run(config.runs_dir)
    steps = checkpoint.saved_steps(folder / "checkpoints")
    if not steps:
        raise checkpoint.CheckpointError(f"{folder}: no checkpoint there; name a run's folder that has one")
    best = (runs.read_status(folder).get("best") or {}).get("step")
    return checkpoint.path_of(
        folder / "checkpoints", best if config.which == "best" and best in steps else steps[-1]
    )


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


@cli.command("sample", SampleConfig)
def main(config: SampleConfig) -> None:
    import torch

    from model.streams import stream_seed
    from training import device as devices

    loaded = checkpoint.load(find_checkpoint(config))
    try:
        tokenizer = tokenizers.from_spec(loaded.meta.tokenizer)
    except DataError as error:
        raise checkpoint.CheckpointError(f"{loaded.path}: {error}") from None
    prompt = beginning(config, tokenizer)
    try:
        ids = tokenizer.encode(prompt)
    except DataError as error:
        raise DataError(f"{'prompt' if config.prompt_file is None else 'prompt_file'}: {error}") from None

    compute = devices.choose(config.device, "fp32")
    devices.set_switches(compute, threads=None)
    packages = OURS + ((config.trust,) if config.trust else ())
    model = load_model(loaded, tokenizer.vocab_size, packages).to(compute.device).eval()
    print(f"{loaded.path}, step {loaded.meta.step:,}", file=sys.stderr)

    start = torch.from_numpy(ids.astype("int64"))[None].to(compute.device)  # (1, T)
    for sample in range(config.num_samples):
        generator = torch.Generator(compute.device).manual_seed(stream_seed(config.seed, "sample", sample))
        choose = partial(
            draw,
            temperature=config.temperature,
            top_k=config.top_k,
            top_p=config.top_p,
            generator=generator,
        )
        if sample:
            print("---------------")
        print(prompt, end="", flush=True)
        characters = codecs.getincrementaldecoder("utf-8")(errors="replace")  # a token may end within one
        for token in islice(model.generate(start, choose), config.max_new_tokens):
            print(characters.decode(tokenizer.decode([int(token)])), end="", flush=True)
        print(characters.decode(b"", final=True))


if __name__ == "__main__":
    main()
