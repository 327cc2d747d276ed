"""The audit of a loss: by which weights its auxiliary terms stand in the gradient."""
