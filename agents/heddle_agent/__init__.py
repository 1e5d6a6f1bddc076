"""The Heddle switch agent: holds the routes of one switch and repairs them on its own.

The packages form layers, and each imports only layers to its right: ``cli`` > ``app`` > ``metrics``
| ``traces`` > ``agent`` | ``host`` | ``conformance`` > ``session`` | ``watch`` | ``peers`` >
``table`` > ``fib`` > ``settings`` | ``stopping``.

``agent.Agent`` is the agent of one switch. It needs no process of its own: one process may embed
hundreds of agents in one asyncio loop. The emulator runs a fabric like this::

    from heddle_agent.agent import Agent
    from heddle_agent.fib import Link, MemoryFib, NicIds, NextHop, Packet, Packets, Underlay
    from heddle_agent.session import Channels
    from heddle_agent.watch import ManualLinks

    names = NicIds()        # one per process: NIC name <-> int id, shared by all its agents
    channels = Channels()  # one per process: gRPC channels by address, plain text to loopback

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
    running = asyncio.create_task(agent.run())  # retries controllers until stop() is called

    links.down("spine0", "0", reason="carrier")  # a local failure; links.up(...) ends it
    await links.settled()                        # the agent has moved what was at risk
    agent.link_notice(Link.between("spine1", "leaf9", "0"), up=False)  # a failure elsewhere

    fib.lookup(Packet("nic0", "nic9", 49152, 4791))  # -> NextHop, or None: dropped
    batch = Packets(names.ids(sources), names.ids(destinations), source_ports, destination_ports)
    fib.lookup_batch(batch)   # -> int32 array: index into fib.next_hops, -1: dropped
    fib.entry_hits(batch)     # -> bool array: an exact-match entry answers (else underlay)
    fib.count(batch, 4096)    # adds to the entries' packet and byte counters

    agent.held       # Held(epoch, generation, entries, dirty, stale): what is programmed
    agent.connected  # a controller has accepted the session
    await agent.stop()
    await channels.close()

Set ``GRPC_VERBOSITY=NONE`` in the environment of such a process. gRPC reads it when it is first
imported. Without it, gRPC writes to standard error what the agents' own log already says.

``Underlay`` is a Protocol that the embedding process implements: ``next_hops(destination: str) ->
Sequence[NextHop]`` returns the equal-cost next hops of this switch towards a NIC, as BGP would
choose them. One next hop is a plain route, and none means that packets are dropped. Return the same
sequence object for all destinations that share it, so that a batch resolves it once. The FIB itself
leaves out next hops over local links that are down, as the kernel does. ``flow_hash`` of
``heddle_agent.fib`` (``flow_hashes`` for arrays) chooses among equal next hops. It hashes the
5-tuple and the seed of the switch, and both forms give the same value.
"""
