"""The rules of intent: pure functions that decide what a request changes in a fabric.

A rule takes a ``View`` (what is known of one fabric) and a request. It returns the ``Change`` to
make, or raises the error that refuses the request. Stores apply changes and know no rules. Time and
tokens come in as arguments (``Stamp``). The package also has the records that stores keep and
return, their codec, the errors and the audit trail.
"""
