"""The plan of a training job and its files."""
