"""The Heddle switch agent: holds the routes of one switch and repairs them on its own.

Rooms, each standing on the ones below it: ``cli`` > ``app`` > ``metrics`` > ``agent`` >
``session`` | ``watch`` (and later ``peers``) > ``table`` > ``fib`` > ``settings``.

``agent.Agent`` is one switch's agent without a process of its own: a process may embed hundreds
of them in one asyncio loop. That is how the emulator runs a fabric::

    from heddle_agent.agent import Agent
    from heddle_agent.fib import Link, MemoryFib, NicIds, NextHop, Packet, Packets, Underlay
    from heddle_agent.session import Channels
    from heddle_agent.watch import ManualLinks

    names = NicIds()        # one a process: NIC name <-> int id, shared by all its agents
    channels = Channels()  # one a process: gRPC channels by address, plain text to loopback

    # Every local link, as the neighbour at its other end and the link key ("0" by default).
    links = ManualLinks("leaf0", [NextHop("nic0"), NextHop("spine0"), NextHop("spine1", "1")])
    fib = MemoryFib("leaf0", links.next_hops, underlay, seed=7, names=names, table_size=0)
    agent = Agent(
        fabric="fabrics/f1",
        switch="leaf0",
        controllers=["127.0.0.1:7400"],
        fib=fib,
        links=links,
        channels=channels,
    )
    running = asyncio.create_task(agent.run())  # returns after stop(); retries for ever before

    links.down("spine0", "0", reason="carrier")  # local failure; links.up(...) mends it
    await links.settled()                        # the agent has flipped what was at risk
    agent.link_notice(Link.between("spine1", "leaf9", "0"), up=False)  # failure seen elsewhere

    fib.lookup(Packet("nic0", "nic9", 49152, 4791))  # -> NextHop, or None: dropped
    batch = Packets(names.ids(sources), names.ids(destinations), source_ports, destination_ports)
    fib.lookup_batch(batch)   # -> int32 array: index into fib.next_hops, -1: dropped
    fib.entry_hits(batch)     # -> bool array: an exact-match entry answers (else underlay)
    fib.count(batch, 4096)    # adds to the entries' packet and byte counters

    agent.held       # Held(epoch, generation, entries, dirty, stale): what is programmed
    agent.connected  # a controller has accepted the session
    await agent.stop()
    await channels.close()

Set ``GRPC_VERBOSITY=ERROR`` in the environment of such a process: gRPC reads it when it is first
imported, and below that level writes to standard error what the agents' own log says already.

``Underlay`` is a Protocol that the host process supplies: ``next_hops(destination: str) ->
Sequence[NextHop]``, the equal-cost next hops of this switch towards a NIC as BGP would have them
(one next hop is a plain route, none drops). Return the same sequence object for destinations that
share it: a batch then resolves it once. Next hops over local links that are down are left out by
the FIB itself, as the kernel does. The choice among equals is ``flow_hash`` (``flow_hashes`` over
arrays) of ``heddle_agent.fib``: 5-tuple and a seed of each switch, the same in both forms.
"""
