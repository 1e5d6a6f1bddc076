"""The wire contract of Heddle; nothing but messages and services lives here."""
