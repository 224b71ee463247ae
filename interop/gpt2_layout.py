"""Describe GPT-2's config.json and model.safetensors, and map the tensor names to those of our model. Two
layouts have the same names: Hugging Face's, and nanoGPT's, whose matrices are transposed.

No torch, transformers or nanoGPT is imported.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, PositiveInt, model_validator

# Hugging Face's name -> our name. Hugging Face's gelu_pytorch_tanh is gelu_new, computed by one kernel.
ACTIVATIONS = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}
ACTIVATIONS |= {name: name for name in ("gelu", "relu2", "silu")}
GPT2_ACTIVATIONS = {name: gpt2_name for gpt2_name, name in ACTIVATIONS.items()} | {"gelu_tanh": "gelu_new"}
GPT2_TOKENS = 50257
PADDED = 64  # vocabularies are often padded to a multiple of 64: nanoGPT's GPT-2 has 50,304 rows
LAYER_NORMS = ("model.norms.LayerNorm", "torch.nn.LayerNorm")


class GPT2(BaseModel):
    """The content of config.json. Defaults are Hugging Face's; keys that are not listed do not change the
    function that the model computes."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)
    model_type: Literal["gpt2", "nanogpt"]
    vocab_size: PositiveInt
    n_positions: PositiveInt = Field(validation_alias=AliasChoices("n_positions", "block_size"))
    n_layer: Annotated[PositiveInt, Field(le=10_000)]
    n_head: PositiveInt
    n_embd: PositiveInt
    bias: bool = True  # false in some nanoGPT models
    activation_function: str | None = None
    layer_norm_epsilon: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    n_inner: int | None = None
    tie_word_embeddings: bool = True
    scale_attn_weights: Literal[True] = True
    scale_attn_by_inverse_layer_idx: Literal[False] = False
    add_cross_attention: Literal[False] = False
    auto_map: None = None  # names code that comes with a model, which is never run here

    @model_validator(mode="after")
    def is_supported(self) -> "GPT2":
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"activation_function: {self.activation} is not one of {', '.join(ACTIVATIONS)}")
        if self.n_inner not in (None, 4 * self.n_embd):
            raise ValueError(f"n_inner: {self.n_inner} is not 4·n_embd")
        return self

    @property
    def activation(self) -> str:
        return self.activation_function or ("gelu_new" if self.model_type == "gpt2" else "gelu")

    @property
    def architecture(self) -> dict[str, Any]:
        """The settings that the weights determine; model.block_size may be smaller."""
        return {
            "model.n_layer": self.n_layer,
            "model.n_head": self.n_head,
            "model.n_embd": self.n_embd,
            "model.block_size": self.n_positions,
            "model.bias": self.bias,
            "model.activation": ACTIVATIONS[self.activation],
            "model.positions": "learned",
            "model.tie": self.tie_word_embeddings,
        }

    @property
    def matching_defaults(self) -> dict[str, Any]:
        """The defaults that match the weights; only those apply whose keys the run has."""
        tokenizer = "gpt2" if self.has_gpt2s_vocabulary else "init_from"
        return {"norm.eps": self.layer_norm_epsilon, "data.tokenizer": tokenizer}

    @property
    def has_gpt2s_vocabulary(self) -> bool:
        return self.has_tokens(GPT2_TOKENS)

    def has_tokens(self, count: int) -> bool:
        """Return True if the model has ``count`` tokens, not counting padding."""
        rows = self.vocab_size
        return rows == count or (count < rows < count + 2 * PADDED and rows % PADDED == 0)


@dataclass(frozen=True)
class Entry:
    """A tensor: its name and shape in the file, without ``transformer.``, and its name in our model."""

    gpt2_name: str
    our_name: str
    shape: tuple[int, ...]
    transposed: bool = False


def entries(config: GPT2) -> Iterator[Entry]:
    """Yield the tensors of a model in the order of its forward."""
    V, T, C = config.vocab_size, config.n_positions, config.n_embd
    transposed = config.model_type == "gpt2"  # Hugging Face's Conv1D stores the weight as (in, out)

    def norm(gpt2_name: str, our_name: str) -> Iterator[Entry]:
        for kind in ("weight", "bias") if config.bias else ("weight",):
            yield Entry(f"{gpt2_name}.{kind}", f"{our_name}.{kind}", (C,))

    def linear(gpt2_name: str, our_name: str, n_in: int, n_out: int) -> Iterator[Entry]:
        shape = (n_in, n_out) if transposed else (n_out, n_in)
        yield Entry(f"{gpt2_name}.weight", f"{our_name}.weight", shape, transposed)
        if config.bias:
            yield Entry(f"{gpt2_name}.bias", f"{our_name}.bias", (n_out,))

    yield Entry("wte.weight", "embed.tokens.weight", (V, C))
    yield Entry("wpe.weight", "embed.positions.weight", (T, C))
    for i in range(config.n_layer):
        attn, mlp = f"blocks.{i}.attn", f"blocks.{i}.mlp"
        yield from norm(f"h.{i}.ln_1", f"{attn}.pre")
        yield from linear(f"h.{i}.attn.c_attn", f"{attn}.branch.qkv", C, 3 * C)
        yield from linear(f"h.{i}.attn.c_proj", f"{attn}.branch.proj", C, C)
        yield from norm(f"h.{i}.ln_2", f"{mlp}.pre")
        yield from linear(f"h.{i}.mlp.c_fc", f"{mlp}.branch.fc", C, 4 * C)
        yield from linear(f"h.{i}.mlp.c_proj", f"{mlp}.branch.proj", 4 * C, C)
    yield from norm("ln_f", "final")
    if not config.tie_word_embeddings:
        yield Entry("lm_head.weight", "head.weight", (V, C))
