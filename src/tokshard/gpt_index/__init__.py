"""Megatron's GPT index: splits, epochs, document, sample and shuffle index, and token samples."""
