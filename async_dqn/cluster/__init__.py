"""What only a distributed run needs: the cluster's description, its servers, the remote store, the done-queues."""
