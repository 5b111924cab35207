"""python -m tiledask.lab.bench.tiles"""

from tiledask.lab.bench.tiles.bench import main

raise SystemExit(main())
