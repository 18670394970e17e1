"""Where units are encoded: what hands them out, who takes them, and what both say to each other."""
