"""Building blocks that every package shares: progress, the JSON codec, threads, text for people."""
