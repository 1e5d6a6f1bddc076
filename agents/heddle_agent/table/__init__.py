"""Intended, programmed and dirty entries of one switch, behind the epoch fence."""
