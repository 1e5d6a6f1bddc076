"""The store on Redis, which several controllers share.

It is in the module ``store``. This package imports nothing, so that code that only parses addresses
need not load the Redis client.
"""
