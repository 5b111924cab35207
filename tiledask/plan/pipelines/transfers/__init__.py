"""Transfers between devices that occupy one: into a buffer, or both ends.

links       one end: the sender is occupied, the receiver waits
rendezvous  both ends: one after the other, or those between two actions at once
"""

from tiledask.submodules import submodules

__getattr__, __dir__ = submodules(__name__, __path__)
