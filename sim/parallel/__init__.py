"""Many simulations at once: one after the other, in processes of this machine, or on a Ray cluster."""
