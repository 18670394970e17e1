"""The command line: options, one call of the public API, rendering."""
