"""Validation of configs: one line, in the user's words, for the first invalid key."""

import difflib
import re
import reprlib
from typing import Annotated, Any, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from system.errors import ConfigError

OTHER_PROGRAMS = {"finding": "a finding is measured by python -m findings NAME"}  # groups of theirs
KEY_LENGTH = 100  # characters of a key's part that are printed
KINDS = ("adamw", "muon")  # pydantic inserts the kind into the location of an error; it is no key
PATTERNS = {  # what a string that matches no pattern was expected to be
    "device": "auto, cpu, mps, cuda or cuda:N",
    "wandb.project": "1 to 128 characters without / \\ # ? % :",
}


class Checked(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, populate_by_name=True)


Config = TypeVar("Config", bound=Checked)


def checked(kind: type[Config], plain: dict[str, Any]) -> Config:
    """Return ``plain`` as a frozen config. Raises ConfigError, which names the first invalid key."""
    try:
        return kind.model_validate(plain)
    except ValidationError as error:
        raise ConfigError(error_line(kind, error)) from None


def error_line(kind: type[BaseModel], error: ValidationError) -> str:
    """Return pydantic's first error as one line: key, what is wrong, what to do."""
    first = error.errors()[0]
    key = ".".join(str(part)[:KEY_LENGTH] for part in first["loc"] if part not in KINDS)
    if first["type"] == "union_tag_invalid":
        return f"{key}.kind: expected one of {first['ctx']['expected_tags']}; choose it with {key}=…"
    if first["type"] == "extra_forbidden":
        return unknown_key(key, keys(kind))
    if first["type"] in ("missing", "union_tag_not_found"):
        return f"{key}: the key is missing; do not remove it"
    if first["type"] == "value_error" and isinstance(first["input"], dict):  # of a whole model
        message = first["msg"].removeprefix("Value error, ")
        return f"{key}.{message}" if key else message
    if first["type"] == "string_pattern_mismatch":
        expected = PATTERNS.get(key, "a name with a module, such as model.norms.LayerNorm")
        return invalid_value(key, first["input"], expected)
    return invalid_value(key or "config", first["input"], expectation(error))


def invalid_value(key: str, value: Any, expected: str) -> str:
    return f"{key}: invalid value {reprlib.repr(value)}; expected {expected}"


def expectation(error: ValidationError) -> str:
    """Return what pydantic's first error expects, such as ``an integer``."""
    message = error.errors()[0]["msg"].removeprefix("Value error, ").split(", unable")[0]
    for pattern, words in (
        (r"^[A-Z]\w+ should (be )?", ""),
        (r"^a valid (?=[aeiou])", "an "),
        (r"^a valid ", "a "),
        (r"^(?=greater|less)", "a value "),
        (r"^have ", "a value with "),
        (r"^Unable to .*", "a shorter number"),
    ):
        message = re.sub(pattern, words, message)
    return message


def keys(kind: type[BaseModel], prefix: str = "") -> list[str]:
    """Return every key of a config, dotted."""
    dotted = []
    for name, field in kind.model_fields.items():
        inner = field.annotation
        models = [k for k in (inner, *get_args(inner)) if isinstance(k, type) and issubclass(k, BaseModel)]
        models = [k for k in models if k.model_config.get("extra") == "forbid"]  # norms name their own keys
        dotted += [key for model in models for key in keys(model, f"{prefix}{name}.")] or [prefix + name]
    return list(dict.fromkeys(dotted))


def unknown_key(key: str, known: list[str]) -> str:
    """Return one line for a key that does not exist, with the nearest that does, or not for this choice."""
    if key in known:
        return f"{key}: the chosen {key.split('.')[0]} has no such key; leave it out"
    near = difflib.get_close_matches(key, known, n=1) or [
        k for k in known if k.split(".")[-1] == key.split(".")[-1]
    ]
    advice = f"did you mean {near[0]}?" if near else "--cfg job prints all keys"
    return f"{key}: unknown key; {OTHER_PROGRAMS.get(key, advice)}"


def no_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("Input should be a number")
    return value


Int = Annotated[int, BeforeValidator(no_bool)]
Float = Annotated[float, BeforeValidator(no_bool)]
Count = Annotated[Int, Field(ge=1, le=2**40)]
CountOr0 = Annotated[Int, Field(ge=0, le=2**40)]
Seed = Annotated[Int, Field(ge=0, lt=2**63)]
Positive = Annotated[Float, Field(gt=0)]
Fraction = Annotated[Float, Field(ge=0, le=1)]
