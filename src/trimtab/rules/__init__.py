"""Pure decisions: one number comes in, a `Verdict` goes out; what enters the baseline is a second call.

Nothing here reads a clock, a file or a framework, so the same object judges live and offline. Arithmetic is part of a
rule: the judged value is rounded to the nearest float32, the window holds such values as float64, and every sum and
comparison is float64, so that host, device, live and offline agree verdict by verdict.

Which rules a guard can be given, and what it asks of one, stands in `live`.
"""
