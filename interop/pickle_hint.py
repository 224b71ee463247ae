"""Advise how to convert files of torch.save, such as nanoGPT's ckpt.pt and Hugging Face's older weights.
These are pickles, which are never opened here; the user can convert them with torch's weights_only loader."""

import re
from pathlib import Path

SUFFIXES = (".pt", ".pth", ".bin")
FROM_NANOGPT = (
    "json.dump({'model_type': 'nanogpt', **c['model_args']}, open('config.json', 'w')); c = c['model']; "
)
COMMAND = (
    'python -c "import json, torch; from safetensors.torch import save_file; '
    "{load}; {more}"
    "save_file({{k.removeprefix('_orig_mod.'): v.clone() for k, v in c.items()}}, 'model.safetensors')\""
)
LOAD = "c = torch.load('{name}', map_location='cpu', weights_only=True)"
LOAD_PARTS = (
    "from glob import glob; parts = [torch.load(part, map_location='cpu', weights_only=True) "
    "for part in glob('{name}')]; c = {{k: v for part in parts for k, v in part.items()}}"
)


def conversion_command(name: str, more: str) -> str:
    """Return the command that converts a file, or all parts of weights of which ``name`` is one."""
    pattern = re.sub(r"-\d+-of-", "-*-of-", name)
    load = LOAD.format(name=name) if pattern == name else LOAD_PARTS.format(name=pattern)
    return COMMAND.format(load=load, more=more)


def conversion_advice(file: Path) -> str:
    """Return an error line with the command that converts the file, which is taken for nanoGPT's if its
    folder has no config.json."""
    more = "" if (file.parent / "config.json").exists() else FROM_NANOGPT
    name = file.name if re.fullmatch(r"[\w.-]+", file.name) else "FILE"  # the command is pasted into a shell
    command = conversion_command(name, more)
    return (
        f"{file}: a pickle, which is not opened here; in its folder run {command} and give init_from=FOLDER"
    )


def first_pickle(folder: Path) -> Path | None:
    """Return the pickle in ``folder`` that has a usual name of weights, else the first; None without one."""
    usual_files = [folder / name for name in ("ckpt.pt", "pytorch_model.bin")]
    pickles = sorted(file for suffix in SUFFIXES for file in folder.glob(f"*{suffix}"))
    return next((file for file in (*usual_files, *pickles) if file.is_file()), None)
