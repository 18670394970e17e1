"""From raw text to indexed datasets: corpus, tokenizer, tokenize."""
