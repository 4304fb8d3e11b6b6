"""Training data: text to token shards, and samples by number. See docs/data.md."""

from psyche_py.data.provider import DataProvider
from psyche_py.data.shards import TokenShards

__all__ = ["DataProvider", "TokenShards"]
