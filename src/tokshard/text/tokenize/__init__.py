"""The tokenize job: options, units, workers, parts, assembly."""
