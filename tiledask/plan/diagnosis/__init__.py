"""From a trace of what devices did to the plan behind it, and to what would be faster.

trace.py        when devices were busy: a Timeline of tables, CSV, Chrome's JSON
  chrome.py       Chrome's JSON, as torch.profiler writes it
timed.py        a schedule with the seconds of its actions: what explains a trace
infer.py        the schedule behind rows, whose edges say its times exactly
remedies.py     what would shorten it, simulated change by change
diagnose.py     all of it together: findings, causes of idle time, remedies
"""
