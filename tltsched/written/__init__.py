"""What users write, and how it is read: names of policies, draft configurations in the engines' own keys."""
