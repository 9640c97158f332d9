"""The answer of a counterfactual: figures, sentences, picture, page."""
