"""Raw text in: discovery, formats, units of work, records."""
