"""Ways to split sequences of 130, 1 and 77 rows into steps. A step has a number of rows for each sequence."""

SCHEDULES = [
    [[64, 1, 0], [64, 0, 64], [2, 0, 13]],
    [[7, 0, 7]] * 11 + [[53, 1, 0]],
    [[0, 0, 1]] * 70 + [[130, 1, 7]],
]
