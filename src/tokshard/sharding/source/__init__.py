"""What sample ids mean: data sets, indexes and blends as a plan names them, checks them and opens them."""
