"""Files of torch.save's, as nanoGPT's ckpt.pt and older weights of Hugging Face's: pickles, so nothing here
opens them. What their owner can do, in their folder, with torch's loader of mere weights, which runs
nothing."""

import re
from pathlib import Path

SUFFIXES = (".pt", ".pth", ".bin")
FROM_NANOGPT = (
    "json.dump({'model_type': 'nanogpt', **c['model_args']}, open('config.json', 'w')); c = c['model']; "
)
COMMAND = (
    'python -c "import json, torch; from safetensors.torch import save_file; '
    "c = torch.load('{name}', map_location='cpu', weights_only=True); {more}"
    "save_file({{k.removeprefix('_orig_mod.'): v.clone() for k, v in c.items()}}, 'model.safetensors')\""
)


def pickled(file: Path) -> str:
    """What to say of such a file. Without a config.json beside it it is nanoGPT's."""
    if "-of-" in file.name:
        return (
            f"{file}: a pickle, which is not opened here; let transformers' save_pretrained write safetensors"
        )
    more = "" if (file.parent / "config.json").exists() else FROM_NANOGPT
    name = file.name if re.fullmatch(r"[\w.-]+", file.name) else "FILE"  # it goes into a shell
    command = COMMAND.format(name=name, more=more)
    return (
        f"{file}: a pickle, which is not opened here; in its folder run {command} and give init_from=FOLDER"
    )


def first_pickle(folder: Path) -> Path | None:
    """The one of a folder that has its weights, as far as names tell."""
    whole = [folder / name for name in ("ckpt.pt", "pytorch_model.bin")]
    others = sorted(file for suffix in SUFFIXES for file in folder.glob(f"*{suffix}"))
    return next((file for file in (*whole, *others) if file.is_file()), None)
