"""The mesh between the clients of a run: signed announcements, blobs by hash, requests.

    port.py            what the client sees: `Network`, `PeerInfo`, `Announcement`
    identity.py        the p2p key, its peer id, signatures
    hint.py            the 64 bytes on chain that say where a client can be dialed
    message.py         bodies of the announcements
    blob.py            bytes named by their SHA-256
    allowlist.py       who may talk to us, and where they are
    frames.py flood.py overlay.py   signed frames, who gets them, what is missing (no sockets, no clock)
    second.py          second copies of announcements that may wait, and for whom
    transfer.py uploads.py          fetching a blob from whoever has it, and giving it to a few
    doors.py limits.py how many strangers may wait at the port; rate limits
    offences.py        bad input by kind, and who is disconnected for it
    listening.py dial_back.py lan.py    what others should dial; whether they can; peers in our LAN
    node.py            what every adapter shares
    memory.py          adapter for tests and the simulator
    libp2p_adapter.py  adapter for the internet; its parts:
        libp2p_link.py      one peer: dialing, pings, its stream of announcements
        libp2p_services.py  pings, blobs and requests over streams
        relay.py punch.py seen.py   through a third peer; directly through two routers; where others see us
        items.py plain.py   the stream of announcements, cut into items; what comes in and is not libp2p's
        bulk.py bulk_pool.py    encrypted TCP connections for blobs, keyed over libp2p
        libp2p_host.py libp2p_stream.py libp2p_patches.py   the only files that import libp2p

Importing this package imports neither libp2p nor trio-heavy adapters; `open_libp2p_network` does.
"""
