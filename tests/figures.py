"""What the tests of figures share: the words that are really drawn."""

from matplotlib.text import Text

__all__ = ["drawn_texts"]


def drawn_texts(figure, monkeypatch) -> list[Text]:
    """What is really drawn: a tick outside the axes' limits has a label, but nobody sees it."""
    drawn: dict[Text, None] = {}
    draw = Text.draw

    def note(self, renderer, *args, **kwargs):
        if self.get_visible() and self.get_text().strip():
            drawn[self] = None
        return draw(self, renderer, *args, **kwargs)

    monkeypatch.setattr(Text, "draw", note)
    figure.draw_without_rendering()
    return list(drawn)
