"""How things look: figures, tables, HTML. Knows no run."""
