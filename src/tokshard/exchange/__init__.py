"""Exchange of datasets with the formats of other trainers."""
