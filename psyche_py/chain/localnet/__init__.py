"""A local validator for people without the Solana tools: JSON-RPC and websocket in front of LiteSVM.

records, ledger, restore      what survives a restart
history, bank                 the chain as the methods see it
params, rpc_errors, filters   reading requests
encode_*, token_json, ...     the JSON shapes of a node
methods_*, dispatch           the methods; bytes in, bytes out
subscriptions                 who wants to hear of what
http_server, websocket_server, server   sockets, clock, process
"""

from __future__ import annotations

from psyche_py.chain.localnet.server import LocalnetConfig, LocalnetInfo, serve, serve_localnet

__all__ = ["LocalnetConfig", "LocalnetInfo", "serve", "serve_localnet"]
