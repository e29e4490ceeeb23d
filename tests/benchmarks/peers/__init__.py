"""The other migration tools that `tests.benchmarks.migrations` measures against, set up as their manuals say."""
