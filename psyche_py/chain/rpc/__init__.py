"""Solana's JSON-RPC under trio: ``async with RpcBackend(cluster) as backend``."""

from psyche_py.chain.rpc.backend import CLUSTER_OPTIONS, LOCAL_OPTIONS, RpcBackend, RpcOptions

__all__ = ["CLUSTER_OPTIONS", "LOCAL_OPTIONS", "RpcBackend", "RpcOptions"]
