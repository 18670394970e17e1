"""Object stores through fsspec, and datasets of the Hugging Face Hub."""
