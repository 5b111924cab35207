"""Its version; what compiles is tests/twins/standin/cuda."""


def getVersion():
    return (13, 99)
