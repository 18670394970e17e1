"""Documents to tokens: tokenizers, the two engines and their gates, units, workers and the job."""
