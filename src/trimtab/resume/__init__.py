"""The thinking part of safe resume: which checkpoints there are, which are whole, which is the right one. No torch."""
