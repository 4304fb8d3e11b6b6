"""Which cluster: flag, environment, Solana config, localhost."""

from __future__ import annotations

from pathlib import Path

import pytest

from psyche_py.chain.clusters import (
    URLS,
    derive_websocket_url,
    expand_url,
    load_solana_config,
    resolve_cluster,
    resolve_keypair_path,
)
from psyche_py.errors import UsageError


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("l", URLS["localhost"]),
        ("localnet", URLS["localhost"]),
        ("d", URLS["devnet"]),
        ("devnet", URLS["devnet"]),
        ("t", URLS["testnet"]),
        ("m", URLS["mainnet-beta"]),
        (" mainnet ", URLS["mainnet-beta"]),
        ("http://10.0.0.1:1234/key", "http://10.0.0.1:1234/key"),
    ],
)
def test_expand(text: str, url: str) -> None:
    assert expand_url(text) == url


@pytest.mark.parametrize("text", ["", "x", "ws://host", "devnet.example", "http://", "file:///etc/passwd"])
def test_no_cluster(text: str) -> None:
    with pytest.raises(UsageError, match="is no cluster"):
        expand_url(text)


@pytest.mark.parametrize(
    ("url", "websocket"),
    [
        ("http://127.0.0.1:8899", "ws://127.0.0.1:8900"),
        ("https://api.devnet.solana.com", "wss://api.devnet.solana.com"),
        ("https://host/path?api-key=1", "wss://host/path?api-key=1"),
        ("http://[::1]:8899", "ws://[::1]:8900"),
    ],
)
def test_websocket_url(url: str, websocket: str) -> None:
    assert derive_websocket_url(url) == websocket


def test_precedence() -> None:
    environ = {"RPC": "https://env.test", "RPC_2": "https://env2.test", "WS_RPC": "wss://ws.test"}
    config = {"json_rpc_url": "t", "websocket_url": ""}
    flag = resolve_cluster("d", None, environ, config)
    assert (flag.http_urls, flag.source, flag.commitment) == ((URLS["devnet"],), "flag", "confirmed")
    assert flag.websocket_url == "wss://api.devnet.solana.com"
    assert flag.moniker == "devnet"
    from_environment = resolve_cluster(None, None, environ, config)
    assert from_environment.http_urls == ("https://env.test", "https://env2.test")
    assert from_environment.websocket_url == "wss://ws.test"
    assert resolve_cluster(None, None, {}, config).http_urls == (URLS["testnet"],)
    default = resolve_cluster(None, None, {}, {})
    assert (default.source, default.commitment, default.is_local) == ("default", "processed", True)
    both = resolve_cluster("l,d", "ws://127.0.0.1:1", {}, {})
    assert both.http_urls == (URLS["localhost"], URLS["devnet"])
    assert both.websocket_url == "ws://127.0.0.1:1"
    with pytest.raises(UsageError, match="no websocket URL"):
        resolve_cluster("l", "http://127.0.0.1", {}, {})


def test_a_name_shown_to_people_holds_no_api_key() -> None:
    cluster = resolve_cluster("https://host.test/secret?api-key=secret", None, {}, {})
    assert cluster.moniker == "host.test"


def test_keypair_path() -> None:
    config = {"keypair_path": "/config.json"}
    assert resolve_keypair_path("/flag.json", {"WALLET_PATH": "/e"}, config) == (Path("/flag.json"), "flag")
    assert resolve_keypair_path(None, {"WALLET_PATH": "/e"}, config) == (Path("/e"), "environment")
    assert resolve_keypair_path(None, {}, config) == (Path("/config.json"), "Solana config")
    path, source = resolve_keypair_path(None, {}, {})
    assert (path.name, path.is_absolute(), source) == ("id.json", True, "default")


def test_solana_config_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config.yml"
    path.write_text(
        '---\njson_rpc_url: "http://x.test"\naddress_labels:\n  "1": System\ncommitment: confirmed\n'
    )
    assert load_solana_config(path) == {"json_rpc_url": "http://x.test", "commitment": "confirmed"}
    path.write_text("")
    assert load_solana_config(path) == {}
    for damaged in ("- a\n- b\n", "a: [", "just text"):
        path.write_text(damaged)
        with pytest.raises(UsageError):
            load_solana_config(path)
    with pytest.raises(UsageError, match="no config file"):
        load_solana_config(tmp_path / "none.yml")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load_solana_config() == {}
