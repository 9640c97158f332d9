"""The policy that is trained: its passes, losses and update, summed over workers."""
