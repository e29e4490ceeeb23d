"""The fenced migration journal: what happened to a schema migration, kept so that it can be trusted after any crash."""
