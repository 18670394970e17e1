"""Remote calls of tokshard functions as tasks of an existing Ray cluster."""
