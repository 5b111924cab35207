"""Damages of files, drawn: what a disk, a copy that broke off or a stranger may do to them."""

KINDS_OF_DAMAGE = ("flipped", "zeroed", "cut", "longer", "empty", "removed", "inserted", "missing")


def damage(file, kind, rng):
    """Whether a drawn damage of this kind has changed the bytes of ``file``."""
    data = before = file.read_bytes()
    at, size = int(rng.integers(len(data))), int(rng.integers(1, 17))
    noise = rng.bytes(size)
    if kind == "flipped":
        data = data[:at] + bytes([data[at] ^ (1 << int(rng.integers(8)))]) + data[at + 1 :]
    elif kind == "zeroed":
        data = data[:at] + bytes(len(data[at : at + size])) + data[at + size :]
    else:
        data = {
            "cut": data[:-size],
            "longer": data + noise,
            "empty": b"",
            "missing": b"",
            "removed": data[:at] + data[at + size :],
            "inserted": data[:at] + noise + data[at:],
        }[kind]
    file.write_bytes(data)
    if kind == "missing":
        file.unlink()
    return data != before
