"""Reading of launch scripts and commands."""
