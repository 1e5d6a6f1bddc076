"""The embedded store: one SQLite file, durable, the default."""

from heddle_controller.store.embedded.store import EmbeddedStore, open_embedded

__all__ = ["EmbeddedStore", "open_embedded"]
