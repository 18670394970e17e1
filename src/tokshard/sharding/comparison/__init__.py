"""What two plans read differently."""
