"""Files to model values and back: the formats that outside tools rely on, checked whole."""
