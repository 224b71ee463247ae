"""Weights from elsewhere, ``init_from``: OpenAI's GPT-2 from the Hugging Face hub, or a folder in its layout.

    init_from=gpt2      gpt2-medium, gpt2-large, gpt2-xl: from the hub's cache on this machine, else the hub
    init_from=FOLDER    config.json, model.safetensors and, optionally, tokenizer.json

A folder is untrusted: it is read as data, and validated before memory is allocated. Torch is not imported
until the tensors are read.
"""

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

from data import tokenizers
from data.token_files import file_digest
from interop import hub, tokenizer_json
from interop.gpt2_layout import GPT2, PADDED, entries
from interop.hub import HUB, WEIGHTS
from interop.pickle_hint import SUFFIXES, first_pickle, pickled
from system.errors import ConfigError, DataError
from system.files import first_error, header_length, small_text

if TYPE_CHECKING:
    from torch import Tensor

PARTS = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")  # of a large model; the last number is how many
MASKS = re.compile(r"h\.\d+\.attn\.(masked_)?bias")  # in old files: constants, no weights
LARGEST = 2**20  # bytes of a config.json
LARGE = 10**8  # bytes of weights; reading them takes so long that it is announced


@dataclass(frozen=True)
class Pretrained:
    """A folder of weights; its files are read when they are needed.

    Every method raises ConfigError if a file is missing, damaged, or of another kind of model.
    """

    name: str  # the value of init_from
    config: GPT2

    @cached_property
    def files(self) -> list[Path]:
        """The files with the weights."""
        folder = folder_of(self.name, WEIGHTS)
        files = [folder / WEIGHTS]
        if not files[0].is_file():
            files = sorted(file for file in folder.iterdir() if PARTS.fullmatch(file.name))
        if not files:
            raise missing(folder, WEIGHTS)
        if files[0].name != WEIGHTS and {int(file.name[15:20]) for file in files} != {len(files)}:
            raise ConfigError(
                f"{folder}: parts of the weights are missing, or there are too many; download them again"
            )
        return files

    @cached_property
    def digests(self) -> list[str]:
        """SHA-256 of each file."""
        self.check()
        return [file_digest(file) for file in self.files]

    def verify(self) -> None:
        """Verify the hashes of files from the hub."""
        for file, digest in zip(self.files, self.digests, strict=True):
            hub.check(file, digest)

    @property
    def digest(self) -> str:
        """The weights' part of a run's identity."""
        self.verify()
        return hashlib.sha256(" ".join([self.config.model_dump_json(), *self.digests]).encode()).hexdigest()

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
        """Context manager: the tensors of all files by name, without ``transformer.``, not read yet."""
        from safetensors import SafetensorError, safe_open

        files = self.files
        try:
            size, memory = sum(file.stat().st_size for file in files), psutil.virtual_memory().total
            if size > memory:
                raise ConfigError(
                    f"{files[0]}: has {size:,} bytes, but this machine has {memory:,} of memory; name another"
                )
            slices = {}
            for file in files:
                header_length(file)  # raises if it is too long
                content = safe_open(file, framework="pt")  # checks the header against the file's size
                for name in content.keys():  # noqa: SIM118 it is no dict
                    short = name.removeprefix("transformer.")
                    if not MASKS.fullmatch(short):
                        slices[short] = content.get_slice(name)
            yield slices
        except OSError as error:
            raise ConfigError(f"{error.filename or files[0]}: {error.strerror}; check the file") from None
        except (SafetensorError, ValueError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"{files[0]}: damaged or no safetensors file; name another folder") from None

    def tensors(self, block_size: int, vocab_size: int) -> "dict[str, Tensor]":
        """Return the weights by their names in our model, fp32: those of the first ``block_size`` positions,
        and without the rows that pad the vocabulary."""
        import torch

        self.check()
        if self.name in HUB:
            self.verify()
        if (size := sum(file.stat().st_size for file in self.files)) > LARGE:
            print(f"{self.name}: reading {size / 1e9:.1f} GB of weights", file=sys.stderr, flush=True)
        self.check_vocabulary(vocab_size)
        rows = {"embed.tokens.weight": vocab_size, "head.weight": vocab_size}
        rows["embed.positions.weight"] = block_size
        with self.opened() as slices:
            redundant = "lm_head.weight" in slices and self.config.tie_word_embeddings
            if redundant and not torch.equal(slices["lm_head.weight"][:], slices["wte.weight"][:]):
                raise ConfigError(
                    f"{self.files[0]}: the head differs from the embedding, but config.json ties them; "
                    "name another one"
                )
            tensors = {
                entry.our_name: slices[entry.gpt2_name][:].T
                if entry.transposed
                else slices[entry.gpt2_name][:]
                for entry in entries(self.config)
            }
            return {name: tensor[: rows.get(name)].float().contiguous() for name, tensor in tensors.items()}

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise ConfigError unless the model has this many tokens, not counting rows that pad."""
        rows = self.config.vocab_size
        if vocab_size != rows and not (vocab_size < rows < vocab_size + 2 * PADDED and rows % PADDED == 0):
            raise ConfigError(
                f"init_from: {self.name} has a vocabulary of {rows:,} tokens, but the text's tokenizer "
                f"{vocab_size:,}; give data.tokenizer={self.config.suggested['data.tokenizer']}"
            )

    @cached_property
    def tokenizer(self) -> dict[str, Any] | None:
        """The spec of the model's tokenizer (data/tokenizers.py); None if it has none."""
        try:
            folder = folder_of(self.name, "config.json")
            if (file := folder / "tokenizer.json").exists():
                return tokenizer_json.read(file)
            if (file := folder / "meta.json").exists():  # from nanoGPT's data: docs/ecosystem.md
                spec = json.loads(small_text(file, tokenizer_json.LARGEST))["tokenizer"]
                tokenizers.from_spec(spec)
                return dict(spec)
            if self.config.has_gpt2s_vocabulary:
                return tokenizers.gpt2("", "", 0).spec
        except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
            if isinstance(error, DataError):
                raise
            raise ConfigError(f"{file}: cannot be read ({type(error).__name__}); correct it") from None
        return None


@cache
def pretrained(name: str) -> Pretrained:
    """Return the weights that ``init_from`` names. Raises ConfigError if they are no GPT-2, or missing."""
    file = folder_of(name, "config.json") / "config.json"
    if not file.is_file():
        raise missing(file.parent, "config.json")
    try:
        config = json.loads(small_text(file, LARGEST))
        hub.check(file, file_digest(file))
        return Pretrained(name, GPT2.model_validate(config))
    except ConfigError:
        raise
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}; check the file") from None
    except ValidationError as error:
        raise ConfigError(f"{file}: {first_error(error)[:200]}; name a folder with a GPT-2") from None
    except (ValueError, RecursionError):
        raise ConfigError(f"{file}: damaged; name another folder") from None


def missing(folder: Path, file: str) -> ConfigError:
    """Return the error for a folder without this file."""
    if pickle := first_pickle(folder):
        return ConfigError(pickled(pickle))
    if (folder / "checkpoints").is_dir():
        return ConfigError(f"init_from: {folder}: is a run; export it first with python -m scripts.export")
    return ConfigError(f"init_from: {folder}: {file} is missing; name a folder that has it")


def folder_of(name: str, file: str) -> Path:
    """Return the folder of ``init_from``. For a name on the hub, ``file`` is downloaded if it is not cached.

    Raises:
        ConfigError: the folder does not exist, or the hub cannot be reached.
    """
    path = Path(name)
    if name not in HUB or path.is_dir():
        if path.is_file() and path.suffix in SUFFIXES:
            raise ConfigError(pickled(path))
        if path.is_file():
            raise ConfigError(f"init_from: {name}: is a file; name its folder")
        if not path.is_dir():
            raise ConfigError(f"init_from: {name}: no such folder; name one, or one of {', '.join(HUB)}")
        return path
    return hub.from_hub(name, file).parent
