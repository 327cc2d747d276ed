"""Routers of a mixture of experts: their figures as defined, and what taps and sums them while a model trains."""
