"""python -m tiledask.lab.bench.hosts"""

from tiledask.lab.bench.hosts.bench import main

raise SystemExit(main())
