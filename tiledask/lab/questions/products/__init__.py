"""Questions about one large product: blocks over workers, tiles within, layers split.

blocks            1, 7      both levels counted; 1-D to 3-D, one family
one_layer         2, 3, 4   a layer larger than a device: strategies, optimizers, methods
ffn               5         columns, activation, rows
tiles             6, 8      tiles changed, then blocks; tuned on one GPU, run on another
goals             9         one level changed at a time
critique_product  10        any plan judged, and run as advised
"""

from tiledask.lab.questions.products import blocks, critique_product, ffn, goals, one_layer, tiles
from tiledask.lab.questions.question import CourseQuestion

__all__ = ["QUESTIONS"]

QUESTIONS: tuple[CourseQuestion, ...] = (
    *(blocks.QUESTION_1, blocks.QUESTION_7),
    *(one_layer.QUESTION_2, one_layer.QUESTION_3, one_layer.QUESTION_4),
    ffn.QUESTION,
    *(tiles.QUESTION_6, tiles.QUESTION_8),
    goals.QUESTION,
    critique_product.QUESTION,
)
