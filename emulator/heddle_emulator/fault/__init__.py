"""What can break in a fabric, and how to break and mend it."""
