"""Everything that imports torch and is no integration: tokens to rows, the exact skip, the public `Run`."""
