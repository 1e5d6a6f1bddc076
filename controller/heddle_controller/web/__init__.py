"""The web page: JSON, server-sent events and static files. Needs ``heddle-controller[web]``."""
