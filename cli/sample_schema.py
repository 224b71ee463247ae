"""What drawing text needs: the config of sample.py, as cli/schema.py is that of train.py."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from cli.schema import Chosen, DeviceName
from system.validate import Count, CountOr0, Float, Seed


class SampleConfig(Chosen):
    """Everything sample.py needs; conf/sample.yaml explains each key."""

    prompt: str | None
    prompt_file: str | None
    num_samples: Count
    max_new_tokens: CountOr0
    temperature: Annotated[Float, Field(ge=0)]
    top_k: Count | None
    top_p: Annotated[Float, Field(gt=0, le=1)] | None
    seed: Seed
    device: DeviceName
    precision: Literal["auto", "fp32", "bf16"]
    trust: str | None

    @model_validator(mode="after")
    def one_beginning(self) -> "SampleConfig":
        if self.prompt is not None and self.prompt_file is not None:
            raise ValueError("prompt: and prompt_file= both say how to begin; give one of them")
        return self
