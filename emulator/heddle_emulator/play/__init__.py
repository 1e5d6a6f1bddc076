"""Scripts played in the fluid world, over whatever paths a strategy gives."""
