"""The trace command: from step and rank to the source line, and back."""
