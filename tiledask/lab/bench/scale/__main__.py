"""python -m tiledask.lab.bench.scale"""

from tiledask.lab.bench.scale.bench import main

raise SystemExit(main())
