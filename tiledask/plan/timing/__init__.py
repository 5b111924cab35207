"""Seconds of a training step: products, collectives, pipeline, update.

step.py             the estimate of one layout, its stages as they are
  step_estimate.py    the account: seconds by what they go to
step_time.py        the same as plain formulas, for thousands of layouts at once
calibration.py      what programs reach of a datasheet's numbers: by device, kernel and framework
layer_time.py       one layer on one device
  roofline.py         a matrix product by its shape; passes over memory
collective_time.py  collectives among ranks that sit in nodes
budget.py           days, device-hours and money of a training; how often to save
"""
