"""Raw text in: finding inputs, cutting them into units, turning records into batches of documents."""
