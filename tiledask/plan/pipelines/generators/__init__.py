"""The makers of schedules, one function each: from counts to the order of actions per device."""
