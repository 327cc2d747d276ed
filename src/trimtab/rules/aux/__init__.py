"""What is judged of the weights of auxiliary terms, from numbers alone: least squares, named factors, findings."""
