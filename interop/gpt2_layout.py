"""GPT-2 as others write it down, config.json and model.safetensors, and as ours: Hugging Face's layout, and
nanoGPT's weights, which have the same names and their matrices the other way round.

Nothing of theirs is imported or run, and torch is not imported here.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, model_validator

from system.validate import Count, Float

if TYPE_CHECKING:
    pass

# Theirs -> ours. Hugging Face's gelu_pytorch_tanh is gelu_new, computed by one kernel.
ACTIVATIONS = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu", "relu2": "relu2"}
THEIR_ACTIVATIONS = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
GPT2_TOKENS = 50257
PADDED = 64  # a vocabulary is often filled up to a multiple of it: nanoGPT's GPT-2 has 50,304 rows
LAYER_NORMS = ("model.norms.LayerNorm", "torch.nn.LayerNorm")


class GPT2(BaseModel):
    """What a config.json says. Where it does not say, Hugging Face's defaults hold; what else it may say is
    not about the function."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)
    model_type: Literal["gpt2", "nanogpt"]
    vocab_size: Count
    n_positions: Count = Field(validation_alias=AliasChoices("n_positions", "block_size"))
    n_layer: Annotated[Count, Field(le=10_000)]
    n_head: Count
    n_embd: Count
    bias: bool = True  # nanoGPT can do without
    activation_function: str | None = None
    layer_norm_epsilon: Annotated[Float, Field(gt=0, lt=1)] = 1e-5
    n_inner: int | None = None
    tie_word_embeddings: bool = True
    scale_attn_weights: bool = True
    scale_attn_by_inverse_layer_idx: bool = False
    add_cross_attention: bool = False
    auto_map: Any = None

    @model_validator(mode="after")
    def can_be_ours(self) -> "GPT2":
        if self.auto_map is not None:
            raise ValueError("auto_map: it comes with code of its own, which is not run here")
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"activation_function: {self.activation} is none of {', '.join(ACTIVATIONS)}")
        if self.n_inner not in (None, 4 * self.n_embd):
            raise ValueError(f"n_inner: {self.n_inner} is not 4·n_embd")
        if not self.scale_attn_weights or self.scale_attn_by_inverse_layer_idx or self.add_cross_attention:
            raise ValueError("scale_attn_… or add_cross_attention: its attention is not GPT-2's")
        return self

    @property
    def activation(self) -> str:
        return self.activation_function or ("gelu_new" if self.model_type == "gpt2" else "gelu")

    @property
    def architecture(self) -> dict[str, Any]:
        """What the weights determine, by the keys of a run. Of the context a run may take a part."""
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
    def customs(self) -> dict[str, Any]:
        """What goes with the weights unless a run says otherwise, and where it has such a key."""
        tokenizer = "gpt2" if self.has_gpt2s_vocabulary else "init_from"
        return {"norm.eps": self.layer_norm_epsilon, "data.tokenizer": tokenizer}

    @property
    def has_gpt2s_vocabulary(self) -> bool:
        return self.vocab_size in range(GPT2_TOKENS, GPT2_TOKENS + 2 * PADDED)


@dataclass(frozen=True)
class Entry:
    """A tensor of a file: its name there and in our model, its shape there, whether ours is transposed."""

    theirs: str
    ours: str
    shape: tuple[int, ...]
    turned: bool = False


def entries(said: GPT2) -> Iterator[Entry]:
    """The tensors of a model, in the order of its forward. Names there are without ``transformer.``."""
    V, T, C = said.vocab_size, said.n_positions, said.n_embd
    turned = said.model_type == "gpt2"  # whose Conv1D has its weight as (in, out)

    def norm(theirs: str, ours: str) -> Iterator[Entry]:
        for kind in ("weight", "bias") if said.bias else ("weight",):
            yield Entry(f"{theirs}.{kind}", f"{ours}.{kind}", (C,))

    def linear(theirs: str, ours: str, n_in: int, n_out: int) -> Iterator[Entry]:
        shape = (n_in, n_out) if turned else (n_out, n_in)
        yield Entry(f"{theirs}.weight", f"{ours}.weight", shape, turned)
        if said.bias:
            yield Entry(f"{theirs}.bias", f"{ours}.bias", (n_out,))

    yield Entry("wte.weight", "embed.tokens.weight", (V, C))
    yield Entry("wpe.weight", "embed.positions.weight", (T, C))
    for i in range(said.n_layer):
        there, attn, mlp = f"h.{i}", f"blocks.{i}.attn", f"blocks.{i}.mlp"
        yield from norm(f"{there}.ln_1", f"{attn}.pre")
        yield from linear(f"{there}.attn.c_attn", f"{attn}.branch.qkv", C, 3 * C)
        yield from linear(f"{there}.attn.c_proj", f"{attn}.branch.proj", C, C)
        yield from norm(f"{there}.ln_2", f"{mlp}.pre")
        yield from linear(f"{there}.mlp.c_fc", f"{mlp}.branch.fc", C, 4 * C)
        yield from linear(f"{there}.mlp.c_proj", f"{mlp}.branch.proj", 4 * C, C)
    yield from norm("ln_f", "final")
    if not said.tie_word_embeddings:
        yield Entry("lm_head.weight", "head.weight", (V, C))
