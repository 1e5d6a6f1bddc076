"""Who a caller is, and what each role may do; the interceptors use this for every call."""
