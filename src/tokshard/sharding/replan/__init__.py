"""Going on from a plan that was stopped, in another world or with other weights, with a proof."""
