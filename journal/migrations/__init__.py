"""Migrations as verified evidence: manifests and plans, pure."""
