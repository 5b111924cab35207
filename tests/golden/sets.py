"""All golden sets, by name: each is the file NAME.json."""

from golden import choosing, course, dashboard, figures, pipelines, plan, ranks, tile, trainings
from golden.store import GoldenSet

ROOMS = (course, plan, choosing, pipelines, figures, dashboard, tile, ranks, trainings)
SETS: dict[str, GoldenSet] = {one.name: one for room in ROOMS for one in room.SETS}
