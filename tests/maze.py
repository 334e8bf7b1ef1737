"""Mazes: that of Sutton 1990 (figure 8.2 of Sutton & Barto 2018), and a small one. S: start, G: goal, #: wall."""

BOOK = [
    ".......#G",
    "..#....#.",
    "S.#....#.",
    "..#......",
    ".....#...",
    ".........",
]
SMALL = [
    "..#G",
    ".#..",
    "...#",
    "S...",
]
MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))


def find(grid: list[str], mark: str) -> tuple[int, int]:
    (cell,) = ((row, line.index(mark)) for row, line in enumerate(grid) if mark in line)
    return cell


def move(grid: list[str], cell: tuple[int, int], action: int) -> tuple[int, int]:
    row, column = cell[0] + MOVES[action][0], cell[1] + MOVES[action][1]
    is_free = 0 <= row < len(grid) and 0 <= column < len(grid[0]) and grid[row][column] != "#"
    return (row, column) if is_free else cell


def shortest(grid: list[str]) -> int:
    """Steps from the start to the goal."""
    distance, frontier = {find(grid, "S"): 0}, [find(grid, "S")]
    for cell in frontier:
        for following in (move(grid, cell, action) for action in range(4)):
            if following not in distance:
                distance[following] = distance[cell] + 1
                frontier.append(following)
    return distance[find(grid, "G")]
