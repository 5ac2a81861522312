"""Studies: the course's questions: the trainer's model, splits, scaling, time to accuracy."""
