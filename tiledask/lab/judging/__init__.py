"""What people type as answers: `reading`."""
