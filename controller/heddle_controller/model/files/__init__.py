"""Readers and writers of the file formats that other tools rely on. Readers check everything."""
