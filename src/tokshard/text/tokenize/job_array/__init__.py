"""One tokenize run shared by the tasks of a job array."""
