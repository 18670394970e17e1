"""Looking at any product without changing it."""
