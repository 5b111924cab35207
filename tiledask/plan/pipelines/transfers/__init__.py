"""Transfers between devices that occupy one: into a buffer, or both ends.

links       one end: the sender is occupied, the receiver waits
rendezvous  both ends: one after the other, or those between two actions at once
"""
