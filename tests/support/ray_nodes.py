"""A Ray cluster for tests, in a process of its own: Ray takes over the signals of who starts one.

``python ray_nodes.py DIR`` prints the address of a head of one CPU. Then it reads lines: ``add N`` adds a
node of N CPUs, ``kill N`` kills the N-th of these nodes at once, ``lose`` kills the head's server; each is
answered by a line. At the end of the lines everything ends.
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    os.environ |= {"RAY_enable_metrics_collection": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    # Not an argument of the head: Ray 2.60 writes a file to the default directory, and makes only its own.
    os.environ["RAY_TMPDIR"] = sys.argv[1]
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    from ray.cluster_utils import Cluster

    # A killed node is missed after two seconds, and not after half a minute.
    health = {
        "health_check_initial_delay_ms": 0,
        "health_check_period_ms": 500,
        "health_check_failure_threshold": 4,
    }
    head = {"num_cpus": 1, "include_dashboard": False, "_system_config": health}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    nodes = []
    print(cluster.address, file=answers)
    for line in sys.stdin:
        verb, *numbers = line.split()
        if verb == "add":
            nodes.append(cluster.add_node(num_cpus=int(numbers[0])))
        elif verb == "kill":
            cluster.remove_node(nodes[int(numbers[0])], allow_graceful=False)
        else:
            cluster.head_node.all_processes["gcs_server"][0].process.kill()
        print("done", file=answers)
    cluster.shutdown()


if __name__ == "__main__":
    main()
