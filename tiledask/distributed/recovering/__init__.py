"""What brings a cluster back when a part of it is lost, and lets what ran on it go on.

supervisor.py     every slot of a started cluster has a worker again, whatever became of the last
  frozen.py       who is frozen, as the kernel says it; beside workers of others, a process
poison.py         which task ended its worker, and who only waited there
going_on.py       the client tries again what a lost worker ended, until its time is over
kept_state.py     a rank keeps its state every few steps, and at a neighbour; it goes on from it
kept_files.py     what is kept of one rank in one folder
kept_folder.py    where these files are, on the rank's own host
"""

from tiledask.submodules import submodules

__getattr__, __dir__ = submodules(__name__, __path__)
