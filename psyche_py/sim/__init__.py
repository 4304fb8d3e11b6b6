"""Whole runs in virtual time: the client machine and the rule book as they are, everything else simulated.

    clock     what happens next, and when
    settings  a run's configuration, links and compute times
    chain     the rule book behind slots, with endpoints that can go away
    wires     latency, bandwidth, loss, partitions; announcements and payloads
    client    performs a machine's actions as ``client.runtime`` does
    world     puts them together
    faults    what can go wrong, and at which point of a round
    ledger    what must hold whatever goes wrong
    families  scripts by name and seed

Nothing here reads a clock or the system's randomness: one seed is one trace.
"""
