"""Hand-made components of a config."""

from cli.schema import Component


def component(target: str, **options) -> Component:
    return Component.model_validate({"_name_": "x", "_target_": target} | options)
