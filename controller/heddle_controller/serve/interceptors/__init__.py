"""What every call passes on its way in: auth, trace, metrics, errors, in this order."""
