"""Pretrained weights, ``init_from``: OpenAI's GPT-2 from the Hugging Face hub, or a folder in GPT-2's layout.

    init_from=gpt2      gpt2-medium, gpt2-large, gpt2-xl: from the hub or the hub's cache on this machine
    init_from=FOLDER    config.json, model.safetensors and, optionally, tokenizer.json

Folders are untrusted: they are read as plain data, and validated before memory is allocated. Torch is not
imported until the tensors are read."""

import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open

from data import tokenizers
from data.errors import ConfigError, UserError
from data.files import file_digest, first_error
from data.token_files import read_meta
from interop import hub, tokenizer_json
from interop.gpt2_layout import GPT2, entries
from interop.hub import HUB, WEIGHTS
from interop.pickle_hint import SUFFIXES, conversion_advice, first_pickle

if TYPE_CHECKING:
    from torch import Tensor

MASKS = re.compile(r"h\.\d+\.attn\.(masked_)?bias")  # constants in old files, not weights
FLOATING = ("F64", "F32", "F16", "BF16")
EMBEDDING, HEAD = "wte.weight", "lm_head.weight"


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """Context manager: turn any error while an untrusted file is read into a ConfigError."""
    try:
        yield
    except UserError:
        raise
    except OSError as error:
        raise ConfigError(f"{error.filename or file}: {error.strerror}; check the file") from None
    except ValidationError as error:
        raise ConfigError(f"{file}: {first_error(error)[:200]}; name a folder with a GPT-2") from None
    except (SafetensorError, ValueError, LookupError, TypeError, RecursionError):
        raise ConfigError(f"{file}: is damaged; name another folder") from None


@dataclass(frozen=True)
class Pretrained:
    """A folder of weights, whose files are read when they are needed.

    Every method raises ConfigError if a file is missing, damaged, or not of a GPT-2.
    """

    name: str  # the value of init_from
    config: GPT2

    @cached_property
    def files(self) -> list[Path]:
        """The file that holds the weights, or the files that hold parts of them."""
        folder = Path(self.name)
        parts = [] if (folder / WEIGHTS).is_file() else sorted(folder.glob("model-*-of-*.safetensors"))
        return parts or [file_of(self.name, WEIGHTS)]

    @cached_property
    def digest(self) -> str:
        """The hash of the weights and their config, part of a run's identity."""
        print(f"init_from={self.name}: checking the weights", flush=True)
        self.check()
        parts = [self.config.model_dump_json(), *map(file_digest, self.files)]
        return hashlib.sha256(" ".join(parts).encode()).hexdigest()

    def check(self) -> None:
        """Raise ConfigError unless the files have exactly the tensors that config.json describes, and files
        from the hub are undamaged."""
        with self.opened() as slices:
            has = {}
            for name, part in slices.items():
                dtype = "floating point" if part.get_dtype() in FLOATING else part.get_dtype()
                has[name] = f"{dtype} of shape {part.get_shape()}"
            needs = {e.gpt2_name: f"floating point of shape {[*e.shape]}" for e in entries(self.config)}
            if self.config.tie_word_embeddings and HEAD in slices:
                needs[HEAD] = needs[EMBEDDING]
            for name in sorted(has | needs):
                if has.get(name) != needs.get(name):
                    raise ConfigError(
                        f"{self.files[0]}: tensor {name[:100]} is {has.get(name, 'missing')}, but "
                        f"config.json says {needs.get(name, 'that there is none')}; name another folder"
                    )
        for file in self.files:
            hub.check(file)

    @contextmanager
    def opened(self) -> Iterator[Mapping[str, Any]]:
        """Context manager: yield the unread tensors by their names without ``transformer.``."""
        with reading(self.files[0]):
            size = sum(file.stat().st_size for file in self.files)
            if size > (memory := psutil.virtual_memory().total):
                raise ConfigError(
                    f"{self.files[0]}: has {size:,} bytes, but this machine has {memory:,} of memory; "
                    "name a smaller model"
                )
            slices = {}
            for file in self.files:
                content = safe_open(file, framework="pt")  # checks the header against the file's size
                for name in content.keys():  # noqa: SIM118 not a dict
                    short = name.removeprefix("transformer.")
                    if short in slices:
                        raise ConfigError(f"{file}: has {short} a second time; name another folder")
                    slices[short] = content.get_slice(name)
            yield {name: tensor for name, tensor in slices.items() if not MASKS.fullmatch(name)}

    def tensors(self, block_size: int, vocab_size: int) -> "dict[str, Tensor]":
        """Return the weights, fp32, by their names in our model, for the first ``block_size`` positions and
        without the rows that pad the vocabulary."""
        import torch

        self.check()
        self.check_vocabulary(vocab_size)
        rows = {"embed.tokens.weight": vocab_size, "head.weight": vocab_size}
        rows["embed.positions.weight"] = block_size
        with self.opened() as slices:
            has_copy = HEAD in slices and self.config.tie_word_embeddings
            if has_copy and not torch.equal(slices[HEAD][:], slices[EMBEDDING][:]):
                raise ConfigError(
                    f"{self.files[0]}: head and embedding differ, but config.json ties them; "
                    "name another folder"
                )
            tensors = {}
            for entry in entries(self.config):
                tensor = slices[entry.gpt2_name][: rows.get(entry.our_name)]
                tensors[entry.our_name] = (tensor.T if entry.transposed else tensor).float().contiguous()
            return tensors

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise ConfigError unless the model has ``vocab_size`` tokens, not counting padding."""
        if not self.config.has_tokens(vocab_size):
            tokenizer = self.config.matching_defaults["data.tokenizer"]
            raise ConfigError(
                f"init_from: {self.name} has a vocabulary of {self.config.vocab_size:,} tokens, but the "
                f"text's tokenizer has {vocab_size:,}; give data.tokenizer={tokenizer}"
            )

    @cached_property
    def tokenizer(self) -> dict[str, Any] | None:
        """The spec of the model's tokenizer (data/tokenizers.py); None if the folder has none."""
        config = file_of(self.name, "config.json")
        if (file := config.with_name("tokenizer.json")).exists():
            with reading(file):
                return tokenizer_json.read(file)
        if config.with_name("meta.json").exists():  # nanoGPT's data: docs/ecosystem.md
            return read_meta(config.with_name("meta.json"), "name another folder")[1].spec
        return tokenizers.gpt2().spec if self.config.has_gpt2s_vocabulary else None


@cache
def pretrained(name: str) -> Pretrained:
    """Return the pretrained model that ``init_from`` names; the weights are read later. Raises ConfigError if
    the model is missing or not a GPT-2."""
    file = file_of(name, "config.json")
    with reading(file):
        return Pretrained(name, GPT2.model_validate_json(file.read_text(encoding="utf-8")))


def file_of(name: str, part: str) -> Path:
    """Return the file ``part`` of the folder or hub model that ``init_from`` names, downloaded if necessary.
    Raises ConfigError if the file is missing."""
    folder = Path(name)
    if name in HUB and not folder.is_dir():
        return hub.from_hub(name, part)
    if folder.is_file():
        advice = f"init_from: {name}: is a file; name the folder that has it"
        raise ConfigError(conversion_advice(folder) if folder.suffix in SUFFIXES else advice)
    if not folder.is_dir():
        raise ConfigError(f"init_from: {name}: no such folder; name a folder or one of {', '.join(HUB)}")
    if (folder / part).is_file():
        return folder / part
    if pickle := first_pickle(folder):
        raise ConfigError(conversion_advice(pickle))
    if (folder / "checkpoints").is_dir():
        raise ConfigError(f"init_from: {folder}: is a run; export it first with python -m scripts.export")
    raise ConfigError(f"init_from: {folder}: {part} is missing; name a folder that has it")
