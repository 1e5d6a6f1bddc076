"""The rules of intent, once: pure functions that decide what a request changes of a fabric.

A rule takes a ``View`` (what is known of one fabric) and what is asked, and gives the ``Change``
to make, or raises the refusal. Stores apply changes and know no rule. Time and tokens come in as
arguments (``Stamp``). Here too: the records that are kept and handed out, their codec, the errors
and the audit trail.
"""
