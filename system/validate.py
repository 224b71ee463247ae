"""Checking what was composed: one line, in the user's words, for the first thing that is wrong."""

import difflib
import re
import reprlib
from typing import Annotated, Any, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from system.errors import ConfigError

ELSEWHERE = {"finding": "a finding is measured by python -m findings NAME"}  # groups of another program
LONGEST = 100  # characters of a key that is shown
KINDS = ("adamw", "muon")  # pydantic names the kind in the place of an error; it is no key of ours


class Checked(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, populate_by_name=True)


Config = TypeVar("Config", bound=Checked)


def checked(kind: type[Config], plain: dict[str, Any]) -> Config:
    """``plain`` as a frozen config. Raises ConfigError, naming the first wrong key and what it should be."""
    try:
        return kind.model_validate(plain)
    except ValidationError as error:
        raise ConfigError(explained(kind, error)) from None


def explained(kind: type[BaseModel], error: ValidationError) -> str:
    """Pydantic's first finding as one line: key, what is wrong, what to do."""
    first = error.errors()[0]
    key = ".".join(str(part)[:LONGEST] for part in first["loc"] if part not in KINDS)
    if first["type"] == "union_tag_invalid":
        return f"{key}.kind: should be one of {first['ctx']['expected_tags']}; choose it with {key}=…"
    if first["type"] == "extra_forbidden":
        return unknown_key(key, keys(kind))
    if first["type"] in ("missing", "union_tag_not_found"):
        return f"{key}: the key is missing; do not remove it"
    if first["type"] == "value_error" and isinstance(first["input"], dict):  # what must hold between fields
        what = expectation(error)
        return f"{key}.{what}" if key else what
    if first["type"] == "string_pattern_mismatch":
        patterns = {
            "device": "should be auto, cpu, mps, cuda or cuda:N",
            "wandb.project": "should be 1 to 128 characters without / \\ # ? % :",
        }
        should = patterns.get(key, "should be a name with a module, as model.norms.LayerNorm")
        return refusal(key, first["input"], should)
    return refusal(key or "config", first["input"], expectation(error))


def refusal(key: str, value: Any, should: str) -> str:
    return f"{key}: {reprlib.repr(value)} is not possible; it {should}"


def expectation(error: ValidationError) -> str:
    """``should be …``, of pydantic's first finding."""
    said = error.errors()[0]["msg"].removeprefix("Value error, ").split(", unable")[0]
    said = re.sub(r"^[A-Z]\w+ should", "should", said)
    return re.sub(r"^Unable to .*", "cannot be read", said)


def keys(kind: type[BaseModel], prefix: str = "") -> list[str]:
    """Every key of a config, dotted."""
    found = []
    for name, field in kind.model_fields.items():
        inner = field.annotation
        models = [k for k in (inner, *get_args(inner)) if isinstance(k, type) and issubclass(k, BaseModel)]
        models = [k for k in models if k.model_config.get("extra") == "forbid"]  # a norm's keys are its own
        found += [key for model in models for key in keys(model, f"{prefix}{name}.")] or [prefix + name]
    return list(dict.fromkeys(found))


def unknown_key(key: str, known: list[str]) -> str:
    """One line for a key that does not exist, with the nearest that does, or not for what was chosen."""
    if key in known:
        return f"{key}: what was chosen for {key.split('.')[0]} has no such key; leave it out"
    near = difflib.get_close_matches(key, known, n=1) or [
        k for k in known if k.split(".")[-1] == key.split(".")[-1]
    ]
    advice = f"did you mean {near[0]}?" if near else "the option --cfg job prints all keys"
    return f"{key}: unknown key; {ELSEWHERE.get(key, advice)}"


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
