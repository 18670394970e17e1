"""Reading of shell scripts without running them."""
