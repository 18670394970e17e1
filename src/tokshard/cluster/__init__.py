"""Work on other machines: calls of our own functions, run as tasks of a Ray cluster that is there already."""
