"""The indexed dataset: PREFIX.bin, PREFIX.idx, the manifest beside them, and the runs that build them."""
