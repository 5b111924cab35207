"""For whoever teaches: sheets on paper, copies for a grader, grades of a folder of notebooks.

sheet        puzzles and levels of the idle-time ladder as a page to print, with answers or without
assignment   copies of the notebooks without solutions, marked as nbgrader wants it
grading      what the answers in learners' notebooks are worth: a table
"""
