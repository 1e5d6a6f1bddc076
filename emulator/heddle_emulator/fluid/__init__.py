"""The fluid world: what rates flows get where they share links."""
