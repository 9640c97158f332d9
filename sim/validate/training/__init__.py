"""A measured training run: fitted on its first half, predicted on its second."""
