"""Which layout: all of them searched, what binds, what is wrong with one."""
