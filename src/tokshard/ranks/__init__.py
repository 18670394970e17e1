"""Plans of the samples that each rank reads at each step: topology, schedule, order, plan, replan."""
