"""The store on Redis, which several controllers share.

``store`` has it. Who only reads addresses does not load the client of Redis for that.
"""
