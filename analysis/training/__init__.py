"""A training run: phases, acceptance, rewards, the bound by Amdahl, and how well it was predicted."""
