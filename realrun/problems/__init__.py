"""The door for problems: what training asks its policy and what an answer is worth, own Python included."""
