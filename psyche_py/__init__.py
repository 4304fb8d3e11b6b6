"""Train one language model with strangers' GPUs, coordinated and paid for by a Solana program.

Importing this package stays cheap: no torch, no libp2p. Import the part you need, for example
``psyche_py.distro`` for the optimizer or ``psyche_py.coordinator`` for the rule book.
"""

__version__ = "0.1.0"
