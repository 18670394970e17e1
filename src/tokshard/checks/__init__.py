"""Commands that look at products: inspect, verify, trace, diff, doctor."""
