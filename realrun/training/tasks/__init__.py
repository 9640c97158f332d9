"""Problems, their rewards, worked solutions and the warm-up that teaches their form."""
