"""Entrypoints that come with the trainer, on data that needs no download."""
