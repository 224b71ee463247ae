"""Download OpenAI's GPT-2 from the Hugging Face hub. Nothing else is ever downloaded from the hub, and GPT-2
only if the user names one of these models."""

import logging
import re
from functools import cache
from pathlib import Path

from data.errors import ConfigError
from data.files import file_digest

# Models of the organisation openai-community, each with the commit that is downloaded.
HUB = {
    "gpt2": "607a30d783dfa663caf39e06633721c8d4cfcd7e",
    "gpt2-medium": "6dcaa7a952f72f9298047fd5137cd6e4f05f41da",
    "gpt2-large": "32b71b12589c2f8d625668d2335a01cac3249519",
    "gpt2-xl": "15ea56dee5df4983c59b2538573817e1667135e2",
}
WEIGHTS = "model.safetensors"
INSTEAD = f"or give a folder with config.json and {WEIGHTS}"


def from_hub(name: str, file: str) -> Path:
    """Return a file of the hub, from the hub's cache on this machine (HF_HOME) or downloaded into the cache.
    Raises ConfigError without huggingface_hub or a connection."""
    try:
        from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url, try_to_load_from_cache
        from huggingface_hub.constants import HF_HUB_OFFLINE
    except ImportError:
        raise ConfigError(
            f"init_from: {name} needs an extra package; run pip install -r requirements-hub.txt, {INSTEAD}"
        ) from None
    repo = f"openai-community/{name}"
    cached = try_to_load_from_cache(repo, file, revision=HUB[name])
    if isinstance(cached, str):
        return Path(cached)
    print(f"init_from={name}: downloading {file} from the Hugging Face hub", flush=True)
    try:
        url = hf_hub_url(repo, file, revision=HUB[name])
        if not HF_HUB_OFFLINE:  # else hf_hub_download raises
            # check that the hub answers, within huggingface_hub's ten seconds: hf_hub_download would retry
            get_hf_file_metadata(url)
        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
        return Path(hf_hub_download(repo, file, revision=HUB[name]))
    except Exception as error:  # network code can raise anything
        why = " ".join(str(error).split())[:200]
        raise ConfigError(f"init_from: {name} cannot be downloaded ({why}); try again, {INSTEAD}") from None


@cache
def check(file: Path) -> None:
    """Raise ConfigError if a large file in the hub's cache is damaged. The cache links to a file that is
    named by its SHA-256. Small files, and files outside of the cache, are not checked."""
    stored = file.resolve()
    if re.fullmatch("[0-9a-f]{64}", stored.name) and file_digest(stored) != stored.name:
        raise ConfigError(f"{stored}: is damaged (its hash differs from the hub's); delete the file")
