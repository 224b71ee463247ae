"""The config of a run. Hydra composes it from conf/; these classes validate it once and freeze it.

Every default is in conf/*.yaml; the classes hold types, ranges and conditions between fields. Torch is not
imported here, so that a typo is reported at once.
"""

import difflib
import math
import os
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from probe import metric_names


def no_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("Input should be a number")
    return value


def positive_or_auto(value: Any) -> Any:
    number = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
    if not number and value != "auto":
        raise ValueError("it should be auto or a number greater than 0")
    return value


class Checked(BaseModel):
    """A config that refuses unknown keys and cannot be changed."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, populate_by_name=True)


Int = Annotated[int, BeforeValidator(no_bool)]
Float = Annotated[float, BeforeValidator(no_bool)]
Count = Annotated[Int, Field(ge=1, le=2**40)]
CountOr0 = Annotated[Int, Field(ge=0, le=2**40)]
Seed = Annotated[Int, Field(ge=0, lt=2**63)]
Positive = Annotated[Float, Field(gt=0)]
PositiveOrAuto = Annotated[float | Literal["auto"], BeforeValidator(positive_or_auto)]
Fraction = Annotated[Float, Field(ge=0, le=1)]


def number_as_text(value: Any) -> Any:
    return str(value) if isinstance(value, int | float) else value


# a path: most shells do not expand the ~ in data.path=~/my.txt, and Hydra reads runs_dir=2026 as a number
UserPath = Annotated[str, BeforeValidator(number_as_text), AfterValidator(os.path.expanduser)]
GivenPath = Annotated[
    str, Field(min_length=1), BeforeValidator(number_as_text), AfterValidator(os.path.expanduser)
]
SITES = ("qk_norm", "final_norm", "embedding_norm")  # keys of model.* whose value names a norm
Auto = Literal[True, False, "auto"]
DeviceName = Annotated[str, Field(pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$")]


class Component(Checked):
    """A norm or placement: the name of its YAML file, its class, and the keyword arguments of the class."""

    model_config = ConfigDict(extra="allow")
    name: str = Field(alias="_name_", pattern=r"^\w[\w.+-]*$")
    target: str = Field(alias="_target_", pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$")

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class ModelConfig(Checked):
    n_layer: Annotated[Count, Field(le=10_000)]
    n_head: Count
    n_embd: Count
    block_size: Count
    dropout: Annotated[Float, Field(ge=0, lt=1)]
    bias: bool
    activation: Literal["gelu", "gelu_tanh", "relu2", "silu", "swiglu"]
    positions: Literal["learned", "rotary", "none"]
    init: Literal["gpt2", "xavier"]
    init_scale: PositiveOrAuto
    tie: bool
    final_norm: Component | Literal["auto"]
    embedding_norm: Component
    qk_norm: Component
    embedding_scale: Auto
    depth_scaled_init: Auto

    @model_validator(mode="after")
    def heads_divide_channels(self) -> "ModelConfig":
        if self.n_embd % self.n_head:
            advice = f"choose a multiple of {self.n_head}"
            raise ValueError(f"n_embd: {self.n_embd} is not divisible by n_head={self.n_head}; {advice}")
        if self.positions == "rotary" and self.n_embd // self.n_head % 2:
            raise ValueError(
                f"positions: rotary rotates pairs of channels, but n_embd={self.n_embd} / "
                f"n_head={self.n_head} is odd; choose another n_head"
            )
        return self


class DataConfig(Checked):
    corpus: Literal["shakespeare", "tinyshakespeare", "text", "prepared"]
    path: GivenPath | None
    tokenizer: Literal["char", "bpe", "gpt2", "init_from"]
    vocab_size: Annotated[Int, Field(ge=256, le=2**20)]
    val_fraction: Annotated[Float, Field(gt=0, lt=1)] | None
    verify: bool
    cache: GivenPath

    @model_validator(mode="after")
    def path_and_split_fit_the_corpus(self) -> "DataConfig":
        if self.corpus in ("text", "prepared") and self.path is None:
            raise ValueError(f"path: data={self.corpus} needs a path; give data.path=…")
        if self.corpus == "shakespeare" and self.path is not None:
            raise ValueError("path: is not read by data=shakespeare; did you mean data=text data.path=FILE?")
        if (self.corpus == "prepared") != (self.val_fraction is None):
            why = "a number between 0 and 1 for a text, null for data=prepared, which is split already"
            raise ValueError(f"val_fraction: invalid value {self.val_fraction}; give {why}")
        return self


class OptimConfig(Checked):
    learning_rate: Positive
    weight_decay: Annotated[Float, Field(ge=0)]
    beta1: Annotated[Float, Field(ge=0, lt=1)]
    beta2: Annotated[Float, Field(ge=0, lt=1)]
    eps: Positive


class AdamWConfig(OptimConfig):
    kind: Literal["adamw"]


class MuonConfig(OptimConfig):
    kind: Literal["muon"]
    momentum: Annotated[Float, Field(ge=0, lt=1)]


class ScheduleConfig(Checked):
    shape: Literal["cosine", "linear", "constant"]
    warmup_fraction: Fraction
    final_fraction: Fraction


class TrainConfig(Checked):
    steps: CountOr0
    batch_size: Count
    grad_accum: Count
    grad_clip: Annotated[Float, Field(ge=0)]
    eval_every: CountOr0
    eval_windows: Count
    checkpoint_every: CountOr0
    log_every: Count
    threads: Annotated[Int, Field(ge=1, le=4096)] | None

    @model_validator(mode="after")
    def micro_batches_divide_the_batch(self) -> "TrainConfig":
        if self.batch_size % self.grad_accum:
            why = f"{self.batch_size} is not divisible by grad_accum={self.grad_accum}"
            raise ValueError(f"batch_size: {why}; choose a multiple of {self.grad_accum}")
        return self


Pattern = Annotated[str, Field(max_length=100)]  # matches metric names: probe/metric_names.py


class StatsConfig(Checked):
    every: CountOr0
    metrics: Annotated[list[Pattern], Field(max_length=100)]
    sites: Annotated[list[Pattern], Field(max_length=100)]
    histograms_every: CountOr0

    @model_validator(mode="after")
    def histograms_come_with_statistics(self) -> "StatsConfig":
        if self.histograms_every and (not self.every or self.histograms_every % self.every):
            raise ValueError(
                f"histograms_every: {self.histograms_every} is not a multiple of every={self.every}; "
                "histograms need steps that have statistics, so choose a multiple"
            )
        return self


def split_at_commas(value: Any) -> Any:
    """Return the parts of a text, split at its commas; a list is returned unchanged."""
    return [tag.strip() for tag in value.split(",") if tag.strip()] if isinstance(value, str) else value


Tag = Annotated[str, BeforeValidator(number_as_text), Field(min_length=1, max_length=64)]


class WandbConfig(Checked):
    mode: Literal["auto", "online", "offline", "disabled"]
    project: Annotated[str, Field(pattern=r"^[^/\\#?%:]{1,128}$")]
    entity: str | None
    group: Annotated[str, Field(max_length=128)] | None
    tags: Annotated[list[Tag], BeforeValidator(split_at_commas)]
    dir: UserPath
    artifact: bool


class RunConfig(Checked):
    """Everything train.py needs; conf/config.yaml explains each key."""

    runs_dir: GivenPath
    seed: Seed
    device: DeviceName
    precision: Literal["auto", "fp32", "bf16"]
    compile: Auto
    deterministic: bool
    fresh: bool
    init_from: GivenPath | None
    model: ModelConfig
    norm: Component
    placement: Component
    data: DataConfig
    optim: Annotated[AdamWConfig | MuonConfig, Field(discriminator="kind")]
    schedule: ScheduleConfig
    train: TrainConfig
    stats: StatsConfig
    wandb: WandbConfig

    def label(self) -> str:
        """Return init_from (if given), norm, placement and other norms, as typed on the command line."""
        words = [] if self.init_from is None else [f"init_from={self.init_from}"]
        for key, part in self.components().items():
            # model.final_norm is here only if it is not auto
            if key in ("norm", "placement", "model.final_norm") or part.name != "none":
                same = key.startswith("model.") and part == self.norm
                words.append(f"{key}={'same' if same else part.name}")
        return " ".join(words)

    def packages(self) -> list[str]:
        """Return the packages of its norms and its placement, without this project's and without torch."""
        names = {component.target.partition(".")[0] for component in self.components().values()}
        return sorted(names - {"model", "torch"})

    def components(self) -> dict[str, Component]:
        """Return each norm and placement by its key."""
        sites = {f"model.{site}": getattr(self.model, site) for site in SITES}
        values = {"norm": self.norm, "placement": self.placement} | sites
        return {key: value for key, value in values.items() if isinstance(value, Component)}

    @model_validator(mode="after")
    def statistics_exist(self) -> "RunConfig":
        n_layer = self.model.n_layer
        for pattern in self.stats.metrics:
            if not metric_names.matches_any(pattern, n_layer):
                names = [*metric_names.STATISTICS, *metric_names.all_names(min(n_layer, 100))]
                guesses = difflib.get_close_matches(pattern, names, n=1) or metric_names.STATISTICS
                raise ValueError(
                    f"stats.metrics: there is no {pattern!r}; did you mean {', '.join(guesses)}?"
                )
        for pattern in self.stats.sites:
            if not metric_names.matches_any(f"*/{pattern}", n_layer):
                why = f"there is no {pattern!r}; a site is embed, 00.attn, 00.mlp.branch, …"
                raise ValueError(f"stats.sites: {why}")
        return self


# sample.py, and the part of its config that scripts/export.py shares: the model to load

MOST_SAMPLES = 100_000  # more would fill the memory


class ModelSource(Checked):
    """The model to load; conf/sample.yaml explains each key."""

    run: UserPath | None
    checkpoint: UserPath | None
    init_from: GivenPath | None
    which: Literal["best", "last"]
    runs_dir: GivenPath

    @model_validator(mode="after")
    def at_most_one_source(self) -> "ModelSource":
        given_keys = [key for key in ("run", "checkpoint", "init_from") if getattr(self, key) is not None]
        if len(given_keys) > 1:
            first, second, *_ = given_keys
            raise ValueError(f"{first}: {second}= also names a model to load; give only one of them")
        return self


class SampleConfig(ModelSource):
    """Everything sample.py needs; conf/sample.yaml explains each key."""

    prompt: str | None
    prompt_file: GivenPath | None
    num_samples: Annotated[Count, Field(le=MOST_SAMPLES)]
    max_new_tokens: CountOr0
    temperature: Annotated[Float, Field(ge=0)]
    top_k: Count | None
    top_p: Annotated[Float, Field(gt=0, le=1)] | None
    seed: Seed
    device: DeviceName
    precision: Literal["auto", "fp32", "bf16"]
    trust: str | None

    @model_validator(mode="after")
    def one_prompt(self) -> "SampleConfig":
        if self.prompt is not None and self.prompt_file is not None:
            raise ValueError("prompt: prompt_file= also gives a prompt; give only one of them")
        return self
