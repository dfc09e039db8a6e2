"""Run a Ray cluster of two nodes until told to stop: prints its address, then reads commands from stdin.

"remove" removes the second node, "add" adds it again, "stop" ends the cluster; each but the last is answered.
"""

import sys

from ray.cluster_utils import Cluster

MEMORY = {"num_cpus": 1, "object_store_memory": 100 * 2**20}

cluster = Cluster(initialize_head=True, head_node_args={**MEMORY, "include_dashboard": False})
node = cluster.add_node(**MEMORY)
print("address", cluster.address, flush=True)
for line in sys.stdin:
    command = line.strip()
    if command == "stop":
        break
    if command == "add":
        node = cluster.add_node(**MEMORY)
    else:
        cluster.remove_node(node, allow_graceful=False)
    print("done", flush=True)
cluster.shutdown()
