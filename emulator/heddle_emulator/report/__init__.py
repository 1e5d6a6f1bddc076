"""Reports: the results of a run as plain data, and as a page for people.

``evidence`` defines the data, and ``plain`` converts it to JSON and back. The worlds fill it.
Nothing here depends on a world, so a page can be made again from its JSON on any machine.
"""
