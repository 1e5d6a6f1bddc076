"""Plans to per-switch programs: differences, make-before-break stages, explanations."""
