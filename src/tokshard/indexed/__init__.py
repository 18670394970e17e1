"""The Megatron indexed dataset: its layout, a reader and a writer that check everything."""
