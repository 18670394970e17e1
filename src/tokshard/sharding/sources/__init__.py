"""The datasets behind the sample ids of a plan."""
