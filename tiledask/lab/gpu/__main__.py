"""python -m tiledask.lab.gpu"""

from tiledask.lab.gpu.command import main

raise SystemExit(main())
