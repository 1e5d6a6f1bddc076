"""The fluid world: what rates streams get where they share links, and what comes of it in time."""
