"""Adapters of the target database."""
