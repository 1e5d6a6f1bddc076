"""Heddle's wire contract, its Python client, and the text formats that several programs share."""
