"""Which sample each rank reads at each step: topology, schedule, order, plan, replan."""
