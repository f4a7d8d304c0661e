"""The decision core on a real cluster."""
