"""The machine: devices, processes, namespaces."""
