"""Building blocks shared by all packages: progress, the JSON codec, threads, text formatting."""
