"""What a user chooses when joining a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from solders.pubkey import Pubkey

CLIENT_VERSION = "psyche-py-0.1"
"""What a run's client_version is compared with."""


@dataclass(frozen=True)
class ClientOptions:
    """``data_dir`` None: the data location of the run. ``checkpoint_dir`` None: write no checkpoints.

    ``is_public``: the run's clients are anywhere on the internet, ``lan``: look for peers in the local
    network; for both see `open_libp2p_network`.
    ``authorizer`` names the grantee of the authorization to join with: None tries the wallet's own and then
    the one for everybody. ``wait``: a paused run is no error, wait until it goes on.
    """

    run_id: str
    data_dir: Path | None = None
    checkpoint_dir: Path | None = None
    keep_checkpoints: int = 3
    listen_host: str = "127.0.0.1"
    listen_port: int = 0
    announce: str | None = None
    is_public: bool = False
    lan: bool = False
    micro_batch_size: int = 4
    device: str = "auto"
    num_threads: int = 1
    authorizer: Pubkey | None = None
    client_version: str = CLIENT_VERSION
    wait: bool = False
