"""The weight study: the same training with several z weights, and what the watch says of each.

`plan` says what is trained, `arm` trains one of it, `reading` reads its log back, `table` and `figure` show it, and
`sweep` does all that for a whole study.
"""
