"""Hand-made components of a config, and metadata of checkpoints."""

from cli.schema import Component
from tests.conftest import configured
from training import checkpoint as checkpoint_file


def component(target: str, **options) -> Component:
    return Component.model_validate({"_name_": "x", "_target_": target} | options)


def meta(step: int) -> checkpoint_file.Meta:
    return checkpoint_file.Meta(
        step=step, config=configured(), tokenizer={"chars": "é"}, fingerprint="f", run="r", optimizer={}
    )
