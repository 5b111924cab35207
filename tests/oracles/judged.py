"""What a result says of its targets."""


def targets(result) -> dict[str, tuple]:
    return {t.name: (t.got, t.wanted, t.best) for t in result.targets}


def missed(result) -> list[str]:
    return [t.name for t in result.targets if not t.met]
