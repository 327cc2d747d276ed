"""Everything that imports torch and is no integration: tokens to rows, the mask that a skip is, the public `Run`."""
