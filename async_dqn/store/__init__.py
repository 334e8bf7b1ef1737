"""Where the global parameters are: the protocol, the local store, and the clients that push and pull."""
