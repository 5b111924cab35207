"""Questions about layers in a row on devices: where to cut them, and who waits how long.

layers_on_devices  34
"""

from tiledask.lab.questions.pipelines import layers_on_devices
from tiledask.lab.questions.question import CourseQuestion

__all__ = ["QUESTIONS"]

QUESTIONS: tuple[CourseQuestion, ...] = (layers_on_devices.QUESTION,)
