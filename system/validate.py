"""Validate configs: the first invalid key gives an error of one line in plain words."""

import difflib
import math
import re
import reprlib
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from system.errors import ConfigError

ADVICE = {  # key that users try -> what to do instead
    "finding": "a finding is measured by python -m findings NAME",
    "hydra.launcher.n_jobs": "it needs hydra/launcher=joblib",
}
SHORT = {"lr": "optim.learning_rate", "optim.lr": "optim.learning_rate"}  # what other programs call it
KEY_LENGTH = 100  # characters printed of each part of a key
PATTERNS = {  # key -> what the error line says about an invalid string
    "device": "it should be auto, cpu, mps, cuda or cuda:N",
    "wandb.project": "it should be 1 to 128 characters without / \\ # ? % :",
}


class Checked(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, populate_by_name=True)


Config = TypeVar("Config", bound=Checked)


def checked(kind: type[Config], plain: dict[str, Any]) -> Config:
    """Return ``plain`` as a frozen config. Raises ConfigError, whose message names the first invalid key."""
    try:
        return kind.model_validate(plain)
    except ValidationError as error:
        raise ConfigError(error_line(kind, error)) from None


def error_line(kind: type[BaseModel], error: ValidationError) -> str:
    """Return pydantic's first error as one line: key, what is wrong, what to do."""
    first = error.errors()[0]
    location = list(first["loc"])
    if location and location[0] in kind.model_fields and kind.model_fields[str(location[0])].discriminator:
        del location[1:2]  # pydantic names the chosen model, such as "adamw", which is not a key
    key = ".".join(str(part)[:KEY_LENGTH] for part in location)
    if first["type"] == "union_tag_invalid":
        return f"{key}.kind: expected one of {first['ctx']['expected_tags']}; choose it with {key}=…"
    if first["type"] == "extra_forbidden":
        return unknown_key(key, keys(kind))
    if first["type"] in ("missing", "union_tag_not_found"):
        return f"{key}: the key is missing; add it"
    if first["type"] == "value_error" and isinstance(first["input"], dict):  # a check of several keys
        message = first["msg"].removeprefix("Value error, ")
        return f"{key}.{message}" if key else message
    if first["type"] == "string_pattern_mismatch":
        expected = PATTERNS.get(key, "it should be a name with a module, such as model.norms.LayerNorm")
        if key.endswith("_name_"):
            expected = "it is the name of a YAML file; rename the file, with letters, digits, _ . + - only"
        return invalid_value(key, first["input"], expected)
    return invalid_value(key or "config", first["input"], expectation(error))


def invalid_value(key: str, value: Any, expected: str) -> str:
    return f"{key}: invalid value {reprlib.repr(value)}; {expected}"


def expectation(error: ValidationError) -> str:
    """Return what pydantic's first error expects, such as ``it should be a valid integer``."""
    message = error.errors()[0]["msg"].removeprefix("Value error, ").split(", unable")[0]
    return re.sub(r"^\w+(?= should)", "it", message)


def keys(kind: type[BaseModel], prefix: str = "") -> list[str]:
    """Return every key of a config, dotted."""
    dotted = []
    for name, field in kind.model_fields.items():
        types = (field.annotation, *get_args(field.annotation))
        models = [t for t in types if isinstance(t, type) and issubclass(t, BaseModel)]
        # leave out models that allow further keys, such as norms
        models = [model for model in models if model.model_config.get("extra") == "forbid"]
        dotted += [key for model in models for key in keys(model, f"{prefix}{name}.")] or [prefix + name]
    return list(dict.fromkeys(dotted))


def unknown_key(key: str, known: list[str]) -> str:
    """Return an error line for an unknown key, with the most similar key, or for a key in ``known`` that the
    chosen norm, placement or optimizer lacks."""
    if key in known:
        return f"{key}: the chosen {key.split('.')[0]} has no such key; leave it out"
    if SHORT.get(key) in known:
        return f"{key}: unknown key; did you mean {SHORT[key]}?"
    similar = difflib.get_close_matches(key, known, n=1) or [
        k for k in known if k.split(".")[-1] == key.split(".")[-1]
    ]
    listing = "--cfg hydra prints Hydra's keys" if key.startswith("hydra.") else "--cfg job prints all keys"
    advice = f"did you mean {similar[0]}?" if similar else listing
    return f"{key}: unknown key; {ADVICE.get(key, advice)}"


def no_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("Input should be a number")
    return value


def positive_or_auto(value: Any) -> Any:
    number = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
    if not number and value != "auto":
        raise ValueError("it should be auto or a number greater than 0")
    return value


Int = Annotated[int, BeforeValidator(no_bool)]
Float = Annotated[float, BeforeValidator(no_bool)]
Count = Annotated[Int, Field(ge=1, le=2**40)]
CountOr0 = Annotated[Int, Field(ge=0, le=2**40)]
Seed = Annotated[Int, Field(ge=0, lt=2**63)]
Positive = Annotated[Float, Field(gt=0)]
PositiveOrAuto = Annotated[float | Literal["auto"], BeforeValidator(positive_or_auto)]
Fraction = Annotated[Float, Field(ge=0, le=1)]
