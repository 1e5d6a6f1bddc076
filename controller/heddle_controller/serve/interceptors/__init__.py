"""What every call passes on its way in: auth, trace, metrics, errors, parsing, in this order."""
