"""What a plan reads from disk: simulation and staging lists."""
