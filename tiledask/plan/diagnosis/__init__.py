"""From a trace of what devices did to the plan behind it, and to what would be faster."""
