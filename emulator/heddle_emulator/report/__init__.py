"""Reports: what came of a run as plain data, and as a page that people like to read.

``evidence`` is the data, ``plain`` turns it into JSON and back. Worlds fill it, and nothing
here knows a world: a page can be made again from its JSON on any machine.
"""
