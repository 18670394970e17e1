"""The page of ``tokshard inspect --html``: inspected values in, one self-contained page out."""
