"""The files of a plan: what is asked of it, what it says, and what each rank reads."""
