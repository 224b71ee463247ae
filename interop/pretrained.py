"""Pretrained weights, ``init_from``: OpenAI's GPT-2 from the Hugging Face hub, or a folder in GPT-2's layout.

    init_from=gpt2      gpt2-medium, gpt2-large, gpt2-xl: from the hub's cache on this machine, else the hub
    init_from=FOLDER    config.json, model.safetensors and, optionally, tokenizer.json

Folders are untrusted: they are read as plain data, and validated before memory is allocated. Torch is not
imported until the tensors are read."""

import hashlib
import json
import re
import sys
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
from data.token_files import file_digest
from interop import hub, tokenizer_json
from interop.gpt2_layout import GPT2, PADDED, entries
from interop.hub import HUB, WEIGHTS
from interop.pickle_hint import SUFFIXES, conversion_advice, first_pickle
from system.errors import ConfigError, UserError
from system.files import first_error, header_length, small_text

if TYPE_CHECKING:
    from torch import Tensor

MASKS = re.compile(r"h\.\d+\.attn\.(masked_)?bias")  # constants in old files, not weights
LARGEST = 2**20  # bytes of a config.json
LARGE = 10**8  # bytes of weights, from which on a line announces that they are read


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """Context manager: turn any error of reading an untrusted file into a ConfigError."""
    try:
        yield
    except UserError:
        raise
    except OSError as error:
        raise ConfigError(f"{error.filename or file}: {error.strerror}; check the file") from None
    except ValidationError as error:
        raise ConfigError(f"{file}: {first_error(error)[:200]}; name a folder with a GPT-2") from None
    except (SafetensorError, ValueError, LookupError, TypeError, RecursionError):
        raise ConfigError(f"{file}: damaged; name another folder") from None


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

    def verified_digests(self) -> list[str]:
        """Return the SHA-256 of each file. Raises ConfigError if a file from the hub has another hash
        there."""
        digests = [file_digest(file) for file in self.files]
        for file, digest in zip(self.files, digests, strict=True):
            hub.check(file, digest)
        return digests

    @cached_property
    def digest(self) -> str:
        """The hash of the weights and their config, part of a run's identity."""
        self.check()
        parts = [self.config.model_dump_json(), *self.verified_digests()]
        return hashlib.sha256(" ".join(parts).encode()).hexdigest()

    def check(self) -> None:
        """Raise ConfigError unless the files have exactly the tensors that config.json describes."""
        with self.opened() as slices:
            shapes = {entry.gpt2_name: entry.shape for entry in entries(self.config)}
            if self.config.tie_word_embeddings and "lm_head.weight" in slices:
                shapes["lm_head.weight"] = shapes["wte.weight"]
            for name in sorted(slices.keys() ^ shapes.keys()):
                problem = "is missing" if name in shapes else "is unknown to config.json"
                raise ConfigError(f"{self.files[0]}: tensor {name[:100]} {problem}; name another folder")
            for name, shape in shapes.items():
                actual, dtype = slices[name].get_shape(), slices[name].get_dtype()
                if tuple(actual) != shape or dtype not in ("F64", "F32", "F16", "BF16"):
                    raise ConfigError(
                        f"{self.files[0]}: tensor {name} is {dtype} of shape {actual}, but config.json says "
                        f"floating point of shape {[*shape]}; name another folder"
                    )

    @contextmanager
    def opened(self) -> Iterator[Mapping[str, Any]]:
        """Context manager: yield the unread tensors by their names without ``transformer.``."""
        with reading(self.files[0]):
            size = sum(file.stat().st_size for file in self.files)
            if size > (memory := psutil.virtual_memory().total):
                raise ConfigError(
                    f"{self.files[0]}: {size:,} bytes, but this machine has {memory:,}; name another"
                )
            slices = {}
            for file in self.files:
                header_length(file)  # raises if the header is too long
                content = safe_open(file, framework="pt")  # checks the header against the file's size
                for name in content.keys():  # noqa: SIM118 not a dict
                    slices[name.removeprefix("transformer.")] = content.get_slice(name)
            yield {name: tensor for name, tensor in slices.items() if not MASKS.fullmatch(name)}

    def tensors(self, block_size: int, vocab_size: int) -> "dict[str, Tensor]":
        """Return the weights, fp32, by their names in our model, for the first ``block_size`` positions and
        without the rows that pad the vocabulary."""
        import torch

        self.check()
        if self.name in HUB:
            self.verified_digests()
        if (size := sum(file.stat().st_size for file in self.files)) > LARGE:
            print(f"{self.name}: reading {size / 1e9:.1f} GB of weights", file=sys.stderr, flush=True)
        self.check_vocabulary(vocab_size)
        rows = {"embed.tokens.weight": vocab_size, "head.weight": vocab_size}
        rows["embed.positions.weight"] = block_size
        with self.opened() as slices:
            redundant = "lm_head.weight" in slices and self.config.tie_word_embeddings
            if redundant and not torch.equal(slices["lm_head.weight"][:], slices["wte.weight"][:]):
                raise ConfigError(
                    f"{self.files[0]}: the head is not the embedding, as config.json says; name another"
                )
            tensors = {}
            for entry in entries(self.config):
                tensor = slices[entry.gpt2_name][: rows.get(entry.our_name)]
                tensors[entry.our_name] = (tensor.T if entry.transposed else tensor).float().contiguous()
            return tensors

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise ConfigError unless the model has ``vocab_size`` tokens, not counting padding."""
        rows = self.config.vocab_size
        if vocab_size != rows and not (vocab_size < rows < vocab_size + 2 * PADDED and rows % PADDED == 0):
            raise ConfigError(
                f"init_from: {self.name} has a vocabulary of {rows:,} tokens, but the text's tokenizer "
                f"{vocab_size:,}; give data.tokenizer={self.config.suggested['data.tokenizer']}"
            )

    @cached_property
    def tokenizer(self) -> dict[str, Any] | None:
        """The spec of the model's tokenizer (data/tokenizers.py); None if it has none."""
        config = file_of(self.name, "config.json")
        if (file := config.with_name("tokenizer.json")).exists():
            with reading(file):
                return tokenizer_json.read(file)
        if (file := config.with_name("meta.json")).exists():  # from nanoGPT: docs/ecosystem.md
            with reading(file):
                spec = dict(json.loads(small_text(file, tokenizer_json.LARGEST))["tokenizer"])
                tokenizers.from_spec(spec)
                return spec
        return tokenizers.gpt2("", "", 0).spec if self.config.has_gpt2s_vocabulary else None


@cache
def pretrained(name: str) -> Pretrained:
    """Return the pretrained model that ``init_from`` names; its weights are read later. Raises ConfigError if
    it is missing or not a GPT-2."""
    file = file_of(name, "config.json")
    with reading(file):
        config = json.loads(small_text(file, LARGEST))
        hub.check(file, file_digest(file))
        return Pretrained(name, GPT2.model_validate(config))


def file_of(name: str, part: str) -> Path:
    """Return the file ``part`` of the folder or model on the hub that ``init_from`` names, downloaded if need
    be. Raises ConfigError if it is missing."""
    folder = Path(name)
    if name in HUB and not folder.is_dir():
        return hub.from_hub(name, part)
    if folder.is_file():
        advice = f"init_from: {name}: is a file; name its folder"
        raise ConfigError(conversion_advice(folder) if folder.suffix in SUFFIXES else advice)
    if not folder.is_dir():
        raise ConfigError(f"init_from: {name}: no such folder; name one, or one of {', '.join(HUB)}")
    if (folder / part).is_file():
        return folder / part
    if pickle := first_pickle(folder):
        raise ConfigError(conversion_advice(pickle))
    if (folder / "checkpoints").is_dir():
        raise ConfigError(f"init_from: {folder}: is a run; export it first with python -m scripts.export")
    raise ConfigError(f"init_from: {folder}: {part} is missing; name a folder that has it")
