"""Following text through all that is made from it: from a step to its files, and from a line to its steps."""
