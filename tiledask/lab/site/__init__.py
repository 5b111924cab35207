"""`make site`: the walkthroughs, run, and the reference of all public names, as pages.

build       runs the walkthroughs, writes what Sphinx reads, has it make build/site
reference   the pages of the public names
conf        Sphinx's settings, and formulas that need no network
looked_at   what is wrong with the pages that came out: links, pictures without words, the network
"""
