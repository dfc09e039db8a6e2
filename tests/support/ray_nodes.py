"""Run a Ray cluster of two nodes until told to stop: prints its address, reads "remove" or "stop" from stdin."""

import sys

from ray.cluster_utils import Cluster

MEMORY = {"num_cpus": 1, "object_store_memory": 100 * 2**20}

cluster = Cluster(initialize_head=True, head_node_args={**MEMORY, "include_dashboard": False})
node = cluster.add_node(**MEMORY)
print("address", cluster.address, flush=True)
for line in sys.stdin:
    if line.strip() == "stop":
        break
    cluster.remove_node(node, allow_graceful=False)
    print("removed", flush=True)
cluster.shutdown()
