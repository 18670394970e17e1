"""The inspect command: what a dataset, cache, blend, plan or tokenizer is."""
