"""A port for strangers: it terminates TLS and passes only harmless HTTP/2 on to gRPC.

gRPC expands headers without a bound: one byte that refers to an entry of the HPACK table becomes
some hundred bytes before any interceptor runs. So where everybody may connect (TLS without client
certificates), a separate thread checks the frames first.
"""
