"""The texts of ``sample_data/``: word lists, templates and the small grammar that joins them."""
