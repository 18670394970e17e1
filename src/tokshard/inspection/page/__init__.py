"""The HTML page of an inspected product."""
