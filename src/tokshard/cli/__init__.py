"""The command line: options, one library call, one rendering. The only package that prints."""
