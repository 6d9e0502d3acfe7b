"""Splits of a call of 130, 1 and 77 rows into steps: the rows of each sequence in each step."""

SCHEDULES = [
    [[64, 1, 0], [64, 0, 64], [2, 0, 13]],
    [[7, 0, 7]] * 11 + [[53, 1, 0]],
    [[0, 0, 1]] * 70 + [[130, 1, 7]],
]
