"""Models from the Hugging Face hub: fetched into the local cache by a process of their own.

    python -m psyche_py.model.hub REPO [REVISION]

The process that trains has downloads switched off (see ``loader``): no configuration that peers sent may make
a library fetch something. So whoever wants a repository asks another process, which builds no model.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from psyche_py.errors import DataError

PATTERNS = ("*.safetensors", "*.json")


def fetch_snapshot(repo: str, revision: str) -> Path:
    """Directory of a repository's weights and small files, downloaded where the cache lacks them.

    ``revision``: a branch, tag or commit, empty for the main branch. Shows its progress on stderr. The user's
    own HF_HUB_OFFLINE, HF_HOME, HF_ENDPOINT and HF_TOKEN count. Raises DataError.
    """
    from psyche_py.model.loader import USERS_OFFLINE

    environment = dict(os.environ)
    environment.pop("HF_HUB_OFFLINE", None)
    if USERS_OFFLINE is not None:
        environment["HF_HUB_OFFLINE"] = USERS_OFFLINE
    command = [sys.executable, "-m", __name__, repo, revision]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    try:
        answer = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        answer = {"error": f"the download ended with code {done.returncode}"}
    if "path" in answer:
        return Path(answer["path"])
    raise DataError(
        f"Cannot get the model {repo} from the Hub: {answer['error']}",
        "Check the repository, the network, and HF_TOKEN for a private one.",
    )


def _download(repo: str, revision: str) -> dict[str, str]:
    import huggingface_hub

    try:
        path = huggingface_hub.snapshot_download(
            repo, revision=revision or None, allow_patterns=list(PATTERNS)
        )
    except (OSError, ValueError, RuntimeError) as error:
        return {"error": " ".join(str(error).split()) or type(error).__name__}
    return {"path": path}


if __name__ == "__main__":
    print(json.dumps(_download(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "")))
