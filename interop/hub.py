"""OpenAI's GPT-2 from the Hugging Face hub: the one thing here that asks that network, and by name only."""

import hashlib
import logging
import re
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path

from system import download
from system.errors import ConfigError

# Names in the organisation openai-community, and the commit of each that is meant.
HUB = {
    "gpt2": "607a30d783dfa663caf39e06633721c8d4cfcd7e",
    "gpt2-medium": "6dcaa7a952f72f9298047fd5137cd6e4f05f41da",
    "gpt2-large": "32b71b12589c2f8d625668d2335a01cac3249519",
    "gpt2-xl": "15ea56dee5df4983c59b2538573817e1667135e2",
}
WEIGHTS = "model.safetensors"
INSTEAD = f"or give a folder that has its config.json and {WEIGHTS}"


def from_hub(name: str, file: str) -> Path:
    """A file of the hub's from where its own programs keep it (HF_HOME), else fetched into there.

    Raises:
        ConfigError: their package is not installed, or there is no way to the hub.
    """
    try:
        from huggingface_hub import hf_hub_download, hf_hub_url, try_to_load_from_cache
        from huggingface_hub.constants import HF_HUB_OFFLINE
    except ImportError:
        raise ConfigError(
            f"init_from: {name} is fetched by a package more; pip install -r requirements-hub.txt, {INSTEAD}"
        ) from None
    repo = f"openai-community/{name}"
    kept = try_to_load_from_cache(repo, file, revision=HUB[name])
    if isinstance(kept, str):
        return Path(kept)
    print(f"init_from={name}: fetching {file} from the Hugging Face hub", flush=True)

    try:
        url = hf_hub_url(repo, file, revision=HUB[name])
        if not HF_HUB_OFFLINE:  # else theirs says so
            download.within(download.SECONDS, lambda: answers(url))  # theirs tries in vain for long
        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
        return Path(hf_hub_download(repo, file, revision=HUB[name]))
    except Exception as error:  # whatever a network can do
        said = " ".join(str(error).split())[:200]
        raise ConfigError(f"init_from: {name} cannot be fetched ({said}); try again, {INSTEAD}") from None


def answers(url: str) -> None:
    """Whether there is a way to it. Raises OSError."""
    with (
        suppress(urllib.error.HTTPError),  # an answer, which is for their package to read
        urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=download.SECONDS),
    ):
        pass


def check(file: Path, sha256: str) -> None:
    """Whether a file in the hub's cache is what the hub has: its name there, behind the link, is the SHA-256
    that the commit says, or, of a small file, git's own. Raises ConfigError. Of any other file this says
    nothing."""
    stored = file.resolve().name
    if re.fullmatch("[0-9a-f]{40}", stored):
        content = file.read_bytes()
        found = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    elif re.fullmatch("[0-9a-f]{64}", stored):
        found = sha256
    else:
        return
    if found != stored:
        raise ConfigError(f"{file.resolve()}: is not what the hub has (its hash is another); delete it")
