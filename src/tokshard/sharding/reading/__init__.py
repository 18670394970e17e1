"""What a plan reads from disks: the bytes of samples, the load of nodes, and lists for copying them there."""
