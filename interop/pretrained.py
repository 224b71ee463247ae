"""Weights from elsewhere, ``init_from``: OpenAI's GPT-2 from the Hugging Face hub, or a folder in its layout.

    init_from=gpt2      gpt2-medium, gpt2-large, gpt2-xl: from the hub's cache on this machine, else the hub
    init_from=FOLDER    config.json and model.safetensors, and where it has one, its tokenizer.json

A folder is a stranger's: it is read as data, and looked at before memory is asked for. Torch is not imported
before its tensors are read.
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
from system.files import header_length, small_text
from system.validate import expectation

if TYPE_CHECKING:
    from torch import Tensor

PARTS = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")  # of a large model; the last number is how many
MASKS = re.compile(r"h\.\d+\.attn\.(masked_)?bias")  # of old files: constants, no weights
LARGEST = 2**20  # bytes of a config.json
LARGE = 10**8  # bytes of weights, which take a while


@dataclass(frozen=True)
class Pretrained:
    """A folder of weights; its files are read when they are asked for.

    Every method raises ConfigError where a file is missing, damaged, or is of another kind of model.
    """

    name: str  # as init_from has it
    said: GPT2

    @cached_property
    def files(self) -> list[Path]:
        """Those with the weights."""
        folder = folder_of(self.name, WEIGHTS)
        found = [folder / WEIGHTS]
        if not found[0].is_file():
            found = sorted(file for file in folder.iterdir() if PARTS.fullmatch(file.name))
        if not found:
            raise lacking(folder, WEIGHTS)
        if found[0].name != WEIGHTS and {int(file.name[15:20]) for file in found} != {len(found)}:
            raise ConfigError(
                f"{folder}: its weights are in parts, of which some are missing or too many; fetch them again"
            )
        return found

    @cached_property
    def digests(self) -> list[str]:
        """SHA-256 of each file."""
        self.check()
        return [file_digest(file) for file in self.files]

    def verify(self) -> None:
        """Whether the hub's files are what it says that they are."""
        for file, digest in zip(self.files, self.digests, strict=True):
            hub.check(file, digest)

    @property
    def digest(self) -> str:
        """What the weights are to a run's identity."""
        self.verify()
        return hashlib.sha256(" ".join([self.said.model_dump_json(), *self.digests]).encode()).hexdigest()

    def check(self) -> None:
        """Whether the files have the tensors that config.json says, and no others."""
        with self.opened() as found:
            wanted = {entry.theirs: entry.shape for entry in entries(self.said)}
            if self.said.tie_word_embeddings and "lm_head.weight" in found:
                wanted["lm_head.weight"] = wanted["wte.weight"]
            for name in sorted(found.keys() ^ wanted.keys()):
                what = "is missing" if name in wanted else "is not of such a model"
                raise ConfigError(f"{self.files[0]}: tensor {name[:100]} {what}; name another folder")
            for name, shape in wanted.items():
                has = found[name]
                if tuple(has.get_shape()) != shape or has.get_dtype() not in ("F64", "F32", "F16", "BF16"):
                    raise ConfigError(
                        f"{self.files[0]}: tensor {name} is {has.get_dtype()} of shape {has.get_shape()}, "
                        f"not numbers of shape {[*shape]}, as config.json says; name another folder"
                    )

    @contextmanager
    def opened(self) -> Iterator[Mapping[str, Any]]:
        """Inside, the tensors of all files by their names, without ``transformer.``, and not read yet."""
        from safetensors import SafetensorError, safe_open

        files = self.files
        try:
            size, memory = sum(file.stat().st_size for file in files), psutil.virtual_memory().total
            if size > memory:
                raise ConfigError(
                    f"{files[0]}: has {size:,} bytes, and this machine's memory {memory:,}; name another"
                )
            found = {}
            for file in files:
                header_length(file)  # looks at it
                content = safe_open(file, framework="pt")  # which checks the header against the file's size
                for name in content.keys():  # noqa: SIM118 it is no dict
                    short = name.removeprefix("transformer.")
                    if not MASKS.fullmatch(short):
                        found[short] = content.get_slice(name)
            yield found
        except OSError as error:
            raise ConfigError(f"{error.filename or files[0]}: {error.strerror}; check the file") from None
        except (SafetensorError, ValueError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"{files[0]}: damaged or no safetensors file; name another folder") from None

    def tensors(self, block_size: int, vocab_size: int) -> "dict[str, Tensor]":
        """The weights by their names in our model, fp32: those of the first positions, and of the first
        tokens where more are only there to make the number even."""
        import torch

        self.check()
        if self.name in HUB:
            self.verify()
        if (size := sum(file.stat().st_size for file in self.files)) > LARGE:
            print(f"{self.name}: reading {size / 1e9:.1f} GB of weights", file=sys.stderr, flush=True)
        self.check_vocabulary(vocab_size)
        kept = {"embed.tokens.weight": vocab_size, "head.weight": vocab_size}
        kept["embed.positions.weight"] = block_size
        with self.opened() as found:
            twice = "lm_head.weight" in found and self.said.tie_word_embeddings
            if twice and not torch.equal(found["lm_head.weight"][:], found["wte.weight"][:]):
                raise ConfigError(
                    f"{self.files[0]}: its head is not its embedding, as config.json says; name another one"
                )
            whole = {
                entry.ours: found[entry.theirs][:].T if entry.turned else found[entry.theirs][:]
                for entry in entries(self.said)
            }
            return {name: tensor[: kept.get(name)].float().contiguous() for name, tensor in whole.items()}

    def check_vocabulary(self, vocab_size: int) -> None:
        """Whether it has this many tokens, but for rows that make their number even."""
        rows = self.said.vocab_size
        if vocab_size != rows and not (vocab_size < rows < vocab_size + 2 * PADDED and rows % PADDED == 0):
            raise ConfigError(
                f"init_from: {self.name} has a vocabulary of {rows:,} tokens, but the text's tokenizer "
                f"{vocab_size:,}; give data.tokenizer={self.said.customs['data.tokenizer']}"
            )

    @cached_property
    def tokenizer(self) -> dict[str, Any] | None:
        """The spec of its tokenizer, as data/tokenizers.py has it; None where it has none."""
        try:
            folder = folder_of(self.name, "config.json")
            if (file := folder / "tokenizer.json").exists():
                return tokenizer_json.read(file)
            if (file := folder / "meta.json").exists():  # of nanoGPT's data: docs/ecosystem.md
                spec = json.loads(small_text(file, tokenizer_json.LARGEST))["tokenizer"]
                tokenizers.from_spec(spec)
                return dict(spec)
            if self.said.has_gpt2s_vocabulary:
                return tokenizers.gpt2("", "", 0).spec
        except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
            if isinstance(error, DataError):
                raise
            raise ConfigError(f"{file}: cannot be read ({type(error).__name__}); mend it") from None
        return None


@cache
def pretrained(name: str) -> Pretrained:
    """What ``init_from`` names. Raises ConfigError where that is no GPT-2, or cannot be had."""
    file = folder_of(name, "config.json") / "config.json"
    if not file.is_file():
        raise lacking(file.parent, "config.json")
    try:
        said = json.loads(small_text(file, LARGEST))
        hub.check(file, file_digest(file))
        return Pretrained(name, GPT2.model_validate(said))
    except ConfigError:
        raise
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}; check the file") from None
    except ValidationError as error:
        raise ConfigError(f"{file}: {what_is_wrong(error)}; name a folder with a GPT-2") from None
    except (ValueError, RecursionError):
        raise ConfigError(f"{file}: damaged; name another folder") from None


def lacking(folder: Path, file: str) -> ConfigError:
    """What to say of a folder that has not this file."""
    found = first_pickle(folder)
    said = f"init_from: {folder}: has no {file}; name a folder that has it"
    if (folder / "checkpoints").is_dir():
        said = f"init_from: {folder}: a run of ours; name what python -m scripts.export makes of it"
    return ConfigError(pickled(found) if found else said)


def what_is_wrong(error: ValidationError) -> str:
    """Pydantic's first finding: the key, and what it should be."""
    key = ".".join(map(str, error.errors()[0]["loc"]))
    return ": ".join(filter(None, [key, expectation(error)]))[:200]


def folder_of(name: str, needed: str) -> Path:
    """Where the files of ``init_from`` are. Of a name on the hub, ``needed`` is fetched where it is missing.

    Raises:
        ConfigError: there is no such folder, or no way to the hub.
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
    return hub.from_hub(name, needed).parent
