"""A port for strangers: TLS ends here, and gRPC is handed only HTTP/2 that it can bear.

gRPC expands headers without a bound: a byte that names an entry of HPACK's table becomes some
hundred bytes, before anything of ours is asked. Where everybody may connect (TLS that asks for no
certificate), what is said is therefore looked at first, in a thread of its own.
"""
