"""Which cluster and which wallet: flag, environment, the Solana CLI's config, localhost; in this order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import yaml

from psyche_py.errors import UsageError

URLS = {
    "localhost": "http://127.0.0.1:8899",
    "devnet": "https://api.devnet.solana.com",
    "testnet": "https://api.testnet.solana.com",
    "mainnet-beta": "https://api.mainnet-beta.solana.com",
}
MONIKERS = {
    **{name: name for name in URLS},
    "l": "localhost",
    "localnet": "localhost",
    "d": "devnet",
    "t": "testnet",
    "m": "mainnet-beta",
    "mainnet": "mainnet-beta",
}
DEFAULT_CONFIG_PATH = Path("~/.config/solana/cli/config.yml")
DEFAULT_KEYPAIR_PATH = Path("~/.config/solana/id.json")
URL_VARIABLES = ("RPC", "RPC_2", "RPC_3")
WEBSOCKET_VARIABLE = "WS_RPC"
WALLET_VARIABLE = "WALLET_PATH"
LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class Cluster:
    """Endpoints of one cluster, in order of preference, and what decided on them (``source``).

    ``commitment`` is "processed" on this machine, where nothing is ever rolled back, else "confirmed".
    """

    http_urls: tuple[str, ...]
    websocket_url: str
    commitment: str
    source: str

    @property
    def is_local(self) -> bool:
        """Whether it runs on this machine."""
        return urlsplit(self.http_urls[0]).hostname in LOCAL_HOSTS

    @property
    def moniker(self) -> str:
        """The cluster's usual name, or the host of its first endpoint (without any key in the URL)."""
        for name, url in URLS.items():
            if url == self.http_urls[0]:
                return name
        parts = urlsplit(self.http_urls[0])
        return parts.hostname or "unknown"


def expand_url(url_or_moniker: str) -> str:
    """The URL for ``l``, ``devnet``, ``https://...``. Raises UsageError."""
    text = url_or_moniker.strip()
    if text in MONIKERS:
        return URLS[MONIKERS[text]]
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(
            f"{url_or_moniker!r} is no cluster.",
            "Give localhost, devnet, testnet or mainnet-beta (or l, d, t, m), or an http(s) URL.",
        )
    return text


def derive_websocket_url(http_url: str) -> str:
    """Solana's rule: ws for http, wss for https; a port that is named is one higher."""
    parts = urlsplit(http_url)
    host = f"[{parts.hostname}]" if parts.hostname and ":" in parts.hostname else parts.hostname or ""
    port = f":{parts.port + 1}" if parts.port is not None else ""
    scheme = "wss" if parts.scheme == "https" else "ws"
    return urlunsplit((scheme, host + port, parts.path, parts.query, ""))


def load_solana_config(path: Path | None = None) -> dict[str, str]:
    """The Solana CLI's config; empty when there is none. Raises UsageError when it is damaged."""
    is_default = path is None
    path = (path or DEFAULT_CONFIG_PATH).expanduser()
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if is_default:
            return {}
        raise UsageError(f"There is no config file at {path}.", "Check the path given with -C.") from None
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        raise UsageError(
            f"{path} cannot be read: {' '.join(str(error).split())}.",
            "Mend it, or write it anew: solana config set --url localhost",
        ) from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UsageError(f"{path} is no Solana config.", "Write it anew: solana config set --url localhost")
    return {key: value for key, value in content.items() if isinstance(key, str) and isinstance(value, str)}


def resolve_cluster(
    url: str | None,
    websocket_url: str | None,
    environ: Mapping[str, str],
    config: Mapping[str, str],
) -> Cluster:
    """Flag, else RPC (with RPC_2, RPC_3 as further endpoints), else the Solana config, else localhost.

    ``url`` may hold several, separated by commas. A websocket URL belongs to the HTTP URL of the same
    source; where a source has none it is derived. Raises UsageError.
    """
    if url:
        urls, source, given = url.split(","), "flag", None
    elif environ.get(URL_VARIABLES[0]):
        urls = [environ[name] for name in URL_VARIABLES if environ.get(name)]
        source, given = "environment", environ.get(WEBSOCKET_VARIABLE)
    elif config.get("json_rpc_url"):
        urls, source, given = [config["json_rpc_url"]], "Solana config", config.get("websocket_url")
    else:
        urls, source, given = ["localhost"], "default", None
    http_urls = tuple(expand_url(text) for text in urls)
    chosen = websocket_url or given or derive_websocket_url(http_urls[0])
    if urlsplit(chosen).scheme not in ("ws", "wss"):
        raise UsageError(f"{chosen!r} is no websocket URL.", "It begins with ws:// or wss://.")
    is_local = urlsplit(http_urls[0]).hostname in LOCAL_HOSTS
    return Cluster(http_urls, chosen, "processed" if is_local else "confirmed", source)


def resolve_keypair_path(
    keypair: str | None, environ: Mapping[str, str], config: Mapping[str, str]
) -> tuple[Path, str]:
    """(path, what decided): flag, else WALLET_PATH, else the Solana config, else ~/.config/solana/id.json."""
    if keypair:
        return Path(keypair).expanduser(), "flag"
    if environ.get(WALLET_VARIABLE):
        return Path(environ[WALLET_VARIABLE]).expanduser(), "environment"
    if config.get("keypair_path"):
        return Path(config["keypair_path"]).expanduser(), "Solana config"
    return DEFAULT_KEYPAIR_PATH.expanduser(), "default"
