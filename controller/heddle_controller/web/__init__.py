"""The page for people: JSON, server-sent events and static files. Needs ``[web]`` installed."""
