"""The diff command: how two plans, blends or caches differ."""
