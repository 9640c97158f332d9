"""The EAGLE-3 head that drafts: module, losses, training, and how well it predicts."""
