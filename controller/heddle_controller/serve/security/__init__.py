"""Who calls, and what each may do; the interceptors ask, nothing else here knows of calls."""
