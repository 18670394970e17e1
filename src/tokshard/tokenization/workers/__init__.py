"""Where units are encoded: in this process, in worker processes, on a Ray cluster."""
