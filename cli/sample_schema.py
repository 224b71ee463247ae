"""The config of sample.py, and the part of it that scripts/export.py shares: the model to load."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from cli.schema import DeviceName, NonEmpty
from system.validate import Checked, Count, CountOr0, Float, Seed

MOST_SAMPLES = 100_000  # more would fill the memory


class ModelSource(Checked):
    """The model to load; conf/sample.yaml explains each key."""

    run: str | None
    checkpoint: str | None
    init_from: NonEmpty | None
    which: Literal["best", "last"]
    runs_dir: str

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
    prompt_file: NonEmpty | None
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
