"""Pretrained weights, ``init_from``:

    init_from=gpt2      gpt2-medium, gpt2-large, gpt2-xl: from the Hugging Face hub, or from its cache
    init_from=FOLDER    a GPT-2 that transformers saved, or any model that scripts/export.py saved

A model's settings are read first, as plain data. Torch and transformers are imported when the weights are
needed."""

import hashlib
import json
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from data import tokenizers
from data.errors import ConfigError
from data.files import file_digest
from data.token_files import read_meta

if TYPE_CHECKING:
    from torch import Tensor

# Models of the organisation openai-community, each with the commit that is downloaded.
HUB = {
    "gpt2": "607a30d783dfa663caf39e06633721c8d4cfcd7e",
    "gpt2-medium": "6dcaa7a952f72f9298047fd5137cd6e4f05f41da",
    "gpt2-large": "32b71b12589c2f8d625668d2335a01cac3249519",
    "gpt2-xl": "15ea56dee5df4983c59b2538573817e1667135e2",
}
WEIGHTS = "model.safetensors"
PICKLES = (".pt", ".pth", ".bin")  # files of torch.save
# transformers' name -> ours. gelu_pytorch_tanh is gelu_new, computed by one kernel.
ACTIVATIONS = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}
ACTIVATIONS |= {name: name for name in ("gelu", "relu2", "silu")}
GPT2_VOCABULARIES = (50257, 50304)  # GPT-2's size, and the padded size of nanoGPT
# keys of a GPT-2's config.json -> the only value that our model supports; it is also transformers' default
FIXED = {
    "model_type": "gpt2",
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
    "auto_map": None,  # names code that comes with the model
}
# the settings of an exported model that its weights determine
SIZES = "n_layer n_head n_embd block_size bias activation positions tie embedding_scale".split()
NORMS = "final_norm embedding_norm qk_norm".split()


@dataclass
class Pretrained:
    """A GPT-2 in a folder; or an exported model of ours that GPT-2's layout cannot hold, which is a
    checkpoint without the optimizer's state. Raises ConfigError if a file is missing, damaged or of another
    model."""

    name: str  # the value of init_from
    folder: Path
    architecture: dict[str, Any]  # settings that the weights determine; model.block_size may be smaller
    defaults: dict[str, Any]  # settings that fit the weights, unless the user gives others
    vocab_size: int  # rows of the embedding
    spec: dict[str, Any] | None = None  # the tokenizer of an exported model; a GPT-2's is in a file

    @property
    def files(self) -> list[Path]:
        """The files of the weights, downloaded if necessary."""
        if is_hubs(self.name):
            fetched(self.name, WEIGHTS)
        parts = sorted(self.folder.glob("model-*-of-*.safetensors"))
        return [self.folder / WEIGHTS] if (self.folder / WEIGHTS).exists() or not parts else parts

    @cached_property
    def digest(self) -> str:
        """The hash of the weights and their settings, part of a run's identity."""
        print(f"init_from={self.name}: reading the weights", flush=True)
        settings = json.dumps([self.architecture, self.defaults])
        return hashlib.sha256(" ".join([settings, *map(file_digest, self.files)]).encode()).hexdigest()

    @cached_property
    def tokenizer(self) -> dict[str, Any] | None:
        """The spec of the model's tokenizer (data/tokenizers.py); None if the folder has none."""
        if self.spec is not None:
            return self.spec
        if (file := self.folder / "tokenizer.json").exists():
            from interop.tokenizer import read

            return read(file)
        if (file := self.folder / "meta.json").exists():  # of nanoGPT's data: docs/ecosystem.md
            return read_meta(file, "name another folder")[1].spec
        return tokenizers.gpt2().spec if self.vocab_size in GPT2_VOCABULARIES else None

    def tensors(self, block_size: int, vocab_size: int) -> "dict[str, Tensor]":
        """Return the weights by their names in our model, for the first ``block_size`` positions and without
        the rows that pad the vocabulary."""
        from safetensors.torch import load_file

        self.check_vocabulary(vocab_size)
        if self.spec is not None:
            tensors = load_file(self.folder / WEIGHTS)
        else:
            from interop import gpt2

            tensors = gpt2.load(self.files, self.vocab_size, self.architecture)
        rows = {"embed.tokens.weight": vocab_size, "head.weight": vocab_size}
        rows["embed.positions.weight"] = block_size
        return tensors | {name: tensors[name][:count] for name, count in rows.items() if name in tensors}

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise ConfigError unless the model has ``vocab_size`` tokens; rows that pad the vocabulary to a
        multiple of 64 do not count."""
        padding = self.vocab_size - vocab_size
        if padding and not (0 < padding < 128 and self.vocab_size % 64 == 0):
            raise ConfigError(
                f"init_from: {self.name} has a vocabulary of {self.vocab_size:,} tokens, but the text's "
                f"tokenizer has {vocab_size:,}; give data.tokenizer={self.defaults['data.tokenizer']}"
            )


@cache
def pretrained(name: str) -> Pretrained:
    """Return the model that ``init_from`` names; its weights are read later. Raises ConfigError if the model
    is missing or of another kind."""
    if is_hubs(name):
        return gpt2_in(fetched(name, "config.json"), name)
    folder = Path(name)
    if not any(folder.glob("*.safetensors")):
        files = sorted(folder.iterdir()) if folder.is_dir() else [folder]
        if of_torch := [file for file in files if file.suffix in PICKLES]:
            raise ConfigError(pickle_advice(of_torch[0]))
        why = f"has no {WEIGHTS}" if folder.is_dir() else "no such folder"
        advice = f"name a folder that has {WEIGHTS} (python -m scripts.export), or one of {', '.join(HUB)}"
        raise ConfigError(f"init_from: {name}: {why}; {advice}")
    try:
        return gpt2_in(folder, name) if (folder / "config.json").exists() else export_in(folder, name)
    except (SafetensorError, ValueError, LookupError, TypeError, AttributeError, OSError) as error:
        raise ConfigError(f"init_from: {folder}: cannot be read ({error}); name another folder") from None


def require_transformers(what: str) -> None:
    """Raise ConfigError unless transformers is installed. It is not imported here."""
    if find_spec("transformers") is None:
        raise ConfigError(f"{what} needs transformers; run pip install -r requirements-hub.txt")


def pickle_advice(file: Path) -> str:
    return f"{file}: a pickle, which is not opened here; docs/ecosystem.md says how to convert it"


def gpt2_in(folder: Path, name: str) -> Pretrained:
    """Return the GPT-2 in a folder, from its config.json."""
    require_transformers(f"init_from: {name}")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    fixed = FIXED | {"n_inner": config.get("n_inner") and 4 * config["n_embd"]}
    unusual = [key for key, value in fixed.items() if config.get(key, value) != value]
    activation = config.get("activation_function", "gelu_new")
    if activation not in ACTIVATIONS:
        unusual.append("activation_function")
    if unusual:
        raise ValueError(f"{unusual[0]}={config[unusual[0]]} in config.json, unlike GPT-2")
    return Pretrained(
        name,
        folder,
        architecture={
            **{f"model.{key}": config[key] for key in ("n_layer", "n_head", "n_embd")},
            "model.block_size": config["n_positions"],
            "model.bias": True,
            "model.activation": ACTIVATIONS[activation],
            "model.positions": "learned",
            "model.tie": config.get("tie_word_embeddings", True),
        },
        defaults={
            "norm.eps": config.get("layer_norm_epsilon", 1e-5),
            "data.tokenizer": "gpt2" if config["vocab_size"] in GPT2_VOCABULARIES else "init_from",
        },
        vocab_size=config["vocab_size"],
    )


def export_in(folder: Path, name: str) -> Pretrained:
    """Return the exported model in a folder, from the metadata of its weights."""
    with safe_open(folder / WEIGHTS, "np") as file:
        text = (file.metadata() or {}).get("normgpt")
    if text is None:
        raise ValueError("config.json is missing")
    meta = json.loads(text)
    config, spec = meta["config"], meta["tokenizer"]
    defaults = {key: config[key] for key in ("norm", "placement")}
    defaults |= {f"model.{key}": config["model"][key] for key in NORMS}
    if "${" in json.dumps(defaults):  # it would be resolved on this machine
        raise ValueError("its settings contain ${")
    architecture = {f"model.{key}": config["model"][key] for key in SIZES}
    targets = [config[group]["_target_"] for group in ("norm", "placement")]
    if {*map(type, targets)} != {str} or type(architecture["model.block_size"]) is not int:
        raise ValueError("its settings are damaged")
    defaults["data.tokenizer"] = "init_from"
    vocab_size = tokenizers.from_spec(spec).vocab_size
    return Pretrained(name, folder, architecture, defaults, vocab_size, spec)


# ---------------------------------------------------------------------------------------------------
# The Hugging Face hub


def is_hubs(name: str) -> bool:
    return name in HUB and not Path(name).is_dir()


def fetched(name: str, file: str) -> Path:
    """Download a file of the hub, unless the hub's cache on this machine (HF_HOME) has it. Return its folder.
    Raises ConfigError if the download fails."""
    require_transformers(f"init_from: {name}")
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url, try_to_load_from_cache

    place = f"openai-community/{name}", file
    try:
        if not isinstance(try_to_load_from_cache(*place, revision=HUB[name]), str):
            print(f"init_from={name}: downloading {file} from the Hugging Face hub", flush=True)
            # without a connection this fails at once; hf_hub_download would retry for 24 s
            get_hf_file_metadata(hf_hub_url(*place, revision=HUB[name]))
        return Path(hf_hub_download(*place, revision=HUB[name])).parent
    except Exception as error:  # network code can raise anything
        why = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"init_from: {name} cannot be downloaded ({why}); try again, or name a folder that has it"
        ) from None
