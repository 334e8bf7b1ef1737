"""Networks, losses, policies and optimizers, as pure functions over flat parameters."""
